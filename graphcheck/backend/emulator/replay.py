"""Replay: the tape as a list of bound calls on raw CPU tensors."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from graphcheck.backend.emulator.generator import GENERATORS
from graphcheck.backend.emulator.tape import Constant, Node, Ref
from graphcheck.errors import ReplayFailed

_OPTIONS = frozenset({"dtype", "layout", "device", "pin_memory"})
_CPU = torch.device("cpu")
_out_forms: dict[Any, Any] = {}


def compiled(nodes: list[Node]) -> list[Any]:
    """One call without arguments for each node, in order."""
    cache: dict[int, torch.Tensor] = {}
    return [_bind(node, cache) for node in nodes]


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


def _bind(node: Node, cache: dict[int, torch.Tensor]) -> Any:
    args = [_build(value) for value in node.args]
    kwargs = {name: _build(value) for name, value in node.kwargs.items()}
    if "device" in kwargs:
        kwargs["device"] = _CPU
    if node.outs is None:
        return partial(_drawing(node, kwargs), *args, **kwargs)
    outs = _flat(node.outs)
    form = out_form(node.func)
    if form is not None and None not in outs and not node.random:
        names, call = form
        kept = {name: value for name, value in kwargs.items() if name not in _OPTIONS or name in call_names(call)}
        targets = {name: out.build() for name, out in zip(names, outs, strict=True)}
        return partial(call, *args, **kept, **targets)
    return partial(_assign, partial(_drawing(node, kwargs), *args, **kwargs), [o.build() if o else None for o in outs])


def _drawing(node: Node, kwargs: dict[str, Any]) -> Any:
    """The callable of a node, which draws from the device's generator where it is random."""
    if not node.random:
        return node.func
    if kwargs.get("generator") is not None:
        return node.func
    if any(argument.name == "generator" for argument in node.func._schema.arguments):
        kwargs["generator"] = GENERATORS.default
        return node.func
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


def call_names(func: Any) -> frozenset[str]:
    return frozenset(argument.name for argument in func._schema.arguments)


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
