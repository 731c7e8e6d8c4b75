"""`component_of`: makes a component of a function that carries a contract, so that it can be fuzzed by itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from graphcheck.cases import Case, Contents, PageTable
from graphcheck.component import Buffers, Component
from graphcheck.contract import Contract, Range, contract_of
from graphcheck.errors import ContractError

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

Allocate = Callable[[torch.device], Buffers]
Stage = Callable[[Buffers, Case], None]


class _Strategies(dict[str, "SearchStrategy[Any]"]):
    """Strategies by field. Copies of a component share them: they are not state, and hold locks."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Strategies:
        return self


class Decorated(Component):
    """A decorated function as a component; `component_of` makes it.

    Dynamic arguments are case fields, out arguments are outputs, workspace is scratch, static arguments are bound once.
    A dynamic argument without a buffer is a host integer: it is handed over as it is, and a function that lets it reach
    a kernel freezes it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        contract: Contract,
        buffers: Allocate,
        bound: Mapping[str, Any],
        fields: Mapping[str, SearchStrategy[Any]],
        stage: Stage | None,
        mutates: tuple[str, ...],
    ) -> None:
        self.function = function
        self.contract = contract
        self.make = buffers
        self.bound = dict(bound)
        self.fields = _Strategies(fields)
        self.staging = stage
        self.scratch = contract.workspace  # type: ignore[misc]
        self.mutates = mutates  # type: ignore[misc]
        self.host: dict[str, Any] = {}
        self.graphcheck_name = getattr(function, "__qualname__", repr(function))

    def allocate(self, device: torch.device) -> Buffers:
        return self.make(device)

    def cases(self) -> SearchStrategy[Case]:
        from graphcheck.strategies import case

        return case(**self.fields)

    def stage(self, buffers: Buffers, case: Case) -> None:
        for name in self.fields:
            value = getattr(case, name)
            if name not in buffers:
                self.host[name] = value
            elif isinstance(value, Contents):
                value.fill(buffers[name])
                _confine(buffers[name], self.contract.ranges.get(name))
            else:
                given = value.tensor() if isinstance(value, PageTable) else torch.as_tensor(value)
                buffers[name].copy_(given.view(buffers[name].shape))
        if self.staging is not None:
            self.staging(buffers, case)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        arguments = {name: buffers[name] for name in self.taken(buffers)}
        returned = self.function(**arguments, **self.host, **self.bound)
        outputs = {name: buffers[name] for name in self.contract.out if name not in self.mutates}
        if isinstance(returned, Mapping):
            outputs.update(returned)
        elif isinstance(returned, torch.Tensor) and not any(returned is tensor for tensor in arguments.values()):
            outputs["result"] = returned
        return outputs

    def taken(self, buffers: Buffers) -> list[str]:
        """Names of the arguments that are buffers."""
        return [name for name in inspect.signature(self.function).parameters if name in buffers]


def component_of(
    function: Callable[..., Any],
    *,
    buffers: Allocate,
    bind: Mapping[str, Any] | None = None,
    stage: Stage | None = None,
    mutates: tuple[str, ...] = (),
    **fields: SearchStrategy[Any],
) -> Component:
    """A component whose captured region is one call of a function with a contract.

    ::

        component_of(
            masked_sum,
            buffers=lambda device: Buffers(x=torch.empty(4, 24, device=device), ...),
            bind={"scale": 0.5},
            kv_lens=lengths(rows=4, high=24),
        )

    Args:
        function: carries `capture_safe`; a bound method will do.
        buffers: makes the tensors of the dynamic, out and workspace arguments, by their names.
        bind: values of the static arguments; those with a default may be left out.
        stage: called after the default staging, for what follows from several fields.
        mutates: out arguments that are state and live on from step to step (a KV cache).
        fields: strategies for dynamic arguments. By default integers of one dimension are `lengths` in their range,
            everything else is `contents`; a dynamic argument without a buffer is a host integer in its range.

    Raises:
        ContractError: the function has no contract, or arguments, buffers and values do not fit it.
    """
    contract = contract_of(function)
    title = getattr(function, "__qualname__", repr(function))
    if contract is None:
        raise ContractError(
            f"component_of({title}): it has no contract; decorate it with @graphcheck.capture_safe(...)"
        )
    parameters = inspect.signature(function).parameters
    dynamic = [name for name in contract.dynamic if name in parameters]
    shapes = _shapes(title, buffers)
    bound = dict(bind or {})
    _check(title, contract, parameters, shapes, bound)
    for name in fields:
        if name not in dynamic:
            raise ContractError(f"component_of({title}, {name}=...): not a dynamic argument; those are {dynamic}")
    wrong = [name for name in mutates if name not in contract.out]
    if wrong:
        raise ContractError(
            f"component_of({title}, mutates={mutates}): {wrong[0]!r} is no out argument of the contract"
        )
    drawn = {
        name: fields[name] if name in fields else _field(title, name, shapes.get(name), contract.ranges.get(name))
        for name in dynamic
    }
    return Decorated(function, contract, buffers, bound, drawn, stage, mutates)


def _shapes(title: str, buffers: Allocate) -> dict[str, torch.Tensor]:
    """The buffers without memory, or on the host where they cannot be made without."""
    try:
        made = buffers(torch.device("meta"))
    except (RuntimeError, NotImplementedError):
        made = buffers(torch.device("cpu"))
    if not isinstance(made, Buffers):
        raise ContractError(f"component_of({title}): buffers returned {type(made).__name__}, expected Buffers")
    return dict(made.items())


def _check(
    title: str,
    contract: Contract,
    parameters: Mapping[str, inspect.Parameter],
    shapes: Mapping[str, torch.Tensor],
    bound: Mapping[str, Any],
) -> None:
    """Raise if an argument would go without a value, or have two."""
    for name in (*contract.out, *contract.workspace):
        optional = name in parameters and parameters[name].default is not inspect.Parameter.empty
        if name in parameters and name not in shapes and not optional:
            raise ContractError(f"component_of({title}): the {contract.role(name)} argument {name!r} has no buffer")
    for name in bound:
        if name not in parameters or name in shapes or name in contract.dynamic:
            raise ContractError(f"component_of({title}): bind gives {name!r}, which is not a static argument")
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        missing = name not in shapes and name not in bound and name not in contract.dynamic
        if missing and parameter.default is parameter.empty:
            raise ContractError(
                f"component_of({title}): argument {name!r} has neither a buffer nor a value; give bind={{...}}"
            )


def _field(title: str, name: str, buffer: torch.Tensor | None, limits: Range | None) -> SearchStrategy[Any]:
    """The default strategy of a dynamic argument."""
    from graphcheck.strategies import contents, integers, lengths

    counts = limits is not None and float(limits.low).is_integer() and float(limits.high).is_integer()
    if buffer is None:
        if limits is None or not counts:
            raise ContractError(
                f"component_of({title}): dynamic argument {name!r} has no buffer and no range of whole numbers; "
                "give it a buffer, a range in the contract, or a strategy"
            )
        return integers(int(limits.low), int(limits.high))
    whole = not buffer.dtype.is_floating_point and not buffer.dtype.is_complex and buffer.dtype is not torch.bool
    if whole and buffer.dim() == 1 and limits is not None and counts and limits.low >= 0:
        return lengths(rows=buffer.numel(), low=int(limits.low), high=int(limits.high))
    if whole and limits is None:
        raise ContractError(
            f"component_of({title}): integers in {name!r} need a range in the contract, such as "
            f"dynamic={{{name!r}: (0, 4096)}}, or a strategy"
        )
    return contents(("normal", "ramp"))


def _confine(tensor: torch.Tensor, limits: Range | None) -> None:
    """Bring contents into their range, in place."""
    if limits is None:
        return
    if tensor.dtype.is_floating_point:
        tensor.clamp_(limits.low, limits.high)
    else:
        low, high = int(limits.low), int(limits.high)
        tensor.remainder_(high - low + 1).add_(low)
