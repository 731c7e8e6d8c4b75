"""Replay: the tape as a list of bound calls on raw CPU tensors."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from graphcheck.backend.emulator.bindings import DIRECT, copying, filling
from graphcheck.backend.emulator.generator import GENERATORS
from graphcheck.backend.emulator.tape import Constant, Node, Ref
from graphcheck.errors import ReplayFailed

_OPTIONS = frozenset({"dtype", "layout", "device", "pin_memory"})
_CPU = torch.device("cpu")
_out_forms: dict[Any, Any] = {}


def compiled(nodes: list[Node]) -> list[Any]:
    """One call without arguments for each node, in order."""
    return [_bind(node) for node in nodes]


def run(steps: list[Any], nodes: list[Node]) -> None:
    """Run the calls with modes, autograd and function overrides off.

    Raises:
        ReplayFailed: an operation raised; names it and the line that recorded it.
    """
    step = None
    with (
        torch._C.DisableTorchFunction(),
        torch._C._DisableTorchDispatch(),
        torch._C._AutoDispatchBelowAutograd(),
        torch._C._InferenceMode(False),
    ):
        try:
            for step in steps:
                step()
        except Exception as error:
            node = nodes[next(number for number, other in enumerate(steps) if other is step)]
            raise ReplayFailed(
                f"{node.func} failed at replay: {str(error).splitlines()[0] if str(error) else type(error).__name__}; "
                f"recorded at {node.where}"
            ) from error


def _bind(node: Node) -> Any:
    args = [_build(value) for value in node.args]
    kwargs = {name: _build(value) for name, value in node.kwargs.items()}
    if "device" in kwargs:
        kwargs["device"] = _CPU
    if node.outs is None:
        direct = None if node.random else DIRECT.get(node.func)
        return partial(direct if direct is not None else _drawing(node, kwargs), *args, **kwargs)
    outs = _flat(node.outs)
    targets: list[Any] = [out.build() if out is not None else None for out in outs]
    if None in targets or node.random:
        return partial(_assign, partial(_drawing(node, kwargs), *args, **kwargs), targets)
    packet = node.func.overloadpacket.__name__ if node.func.namespace == "aten" else ""
    if copying(packet):
        return partial(torch.Tensor.copy_, targets[0], args[0])
    number = filling(packet)
    if number is not None:
        return partial(torch.Tensor.fill_, targets[0], number)
    direct = DIRECT.get(node.func)
    if direct is not None:
        return partial(direct, *args, **kwargs, out=targets[0] if len(targets) == 1 else tuple(targets))
    form = out_form(node.func)
    if form is None:
        return partial(_assign, partial(node.func._op, *args, **kwargs), targets)
    names, call = form
    known = {argument.name for argument in call._schema.arguments}
    kept = {name: value for name, value in kwargs.items() if name in known}
    return partial(call._op, *args, **kept, **dict(zip(names, targets, strict=True)))


def _drawing(node: Node, kwargs: dict[str, Any]) -> Any:
    """The callable of a node, which draws from the device's generator where it is random."""
    if not node.random or kwargs.get("generator") is not None:
        return node.func._op
    if any(argument.name == "generator" for argument in node.func._schema.arguments):
        kwargs["generator"] = GENERATORS.default
        return node.func._op
    return partial(GENERATORS.swapped, node.func)


def _assign(call: Any, targets: list[torch.Tensor | None]) -> None:
    result = call()
    results = _flat(result) if isinstance(result, (list, tuple)) else [result]
    for target, value in zip(targets, results, strict=True):
        if target is not None and value is not target:
            target.copy_(value)


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _flat(item)]
    return [value]


def _build(value: Any) -> Any:
    if isinstance(value, (Ref, Constant)):
        return value.build()
    if isinstance(value, list):
        return [_build(item) for item in value]
    return value


def out_form(func: Any) -> tuple[tuple[str, ...], Any] | None:
    """The overload of ``func`` that writes into given tensors, with the names of those arguments."""
    if func in _out_forms:
        return _out_forms[func]  # type: ignore[no-any-return]
    found = None
    wanted = _shape_of(func)
    packet = func.overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        outs = tuple(argument.name for argument in other._schema.arguments if argument.is_out)
        if outs and len(outs) == len(func._schema.returns) and _shape_of(other) == wanted:
            found = (outs, other)
            break
    _out_forms[func] = found
    return found


def _shape_of(func: Any) -> list[tuple[str, str]]:
    return [
        (argument.name, str(argument.type))
        for argument in func._schema.arguments
        if not argument.is_out and argument.name not in _OPTIONS
    ]
