"""The component contract: what is captured, how its buffers come about, and what the right answer is."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from graphcheck.errors import ContractError

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from graphcheck.cases import Case


class Buffers:
    """Named tensors that a component allocates once; read and (at your own risk) rebound as attributes.

    Device tensors are poisoned, guarded and watched; CPU tensors (pinned or pageable staging) are only watched.
    """

    def __init__(self, **tensors: torch.Tensor) -> None:
        for name, tensor in tensors.items():
            if not isinstance(tensor, torch.Tensor):
                raise ContractError(f"Buffers({name}=...) got {type(tensor).__name__}; every buffer must be a tensor")
            if name.startswith("_") or hasattr(type(self), name):
                raise ContractError(f"Buffers({name}=...): that name is taken; choose another")
        self.__dict__.update(tensors)

    def items(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and tensor of each buffer, in the order of construction."""
        return iter(list(self.__dict__.items()))

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self.__dict__[name]
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self.__dict__

    def __len__(self) -> int:
        return len(self.__dict__)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> torch.Tensor: ...

        def __setattr__(self, name: str, value: torch.Tensor) -> None: ...

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}={tuple(tensor.shape)} {tensor.dtype}" for name, tensor in self.items())
        return f"Buffers({shapes})"


@dataclass(frozen=True)
class Tolerance:
    """How far an eager answer may lie from the float64 reference: ``ulps`` of the output's dtype plus ``absolute``."""

    ulps: float = 0.0
    absolute: float = 0.0


EXACT = Tolerance()


@dataclass(frozen=True)
class Recorded:
    """A graph that a component captured with a library of its own (CuPy's stream capture, cuda.core's graph builder).

    Args:
        launch: runs the graph once on torch's current stream.
        outputs: what the region writes, by name.
        graph: the ``cudaGraph_t`` as a number, if it stays alive as long as ``launch``: then nodes, arguments and
            addresses are watched as well. 0 if there is none.
    """

    launch: Callable[[], object]
    outputs: Mapping[str, torch.Tensor]
    graph: int = 0


class Component:
    """Something that is captured. Subclass it and give at least `allocate`, `cases`, `stage` and `run`.

    Attributes:
        mutates: buffers that `run` advances from step to step (a KV cache, counters). The harness puts them back
            after warm-up and capture. Never poisoned. State that lives on from step to step lives here and nowhere else.
        restores: a subset of ``mutates`` that the component promises to put back itself after warm-up and capture.
        scratch: buffers that may be written, are never compared and are poisoned before each step.
        tolerance: for `reference` only; one for all, or by output name.
        allocation: ``"transient"`` (pool memory that is free again when the region ends is a note), ``"none"`` (no
            allocator activity at all) or a byte budget for the peak of pool memory alive at one time.
        warmup: runs before capture.
        inert: case fields that may influence nothing, each with its reason.
    """

    mutates: ClassVar[tuple[str, ...]] = ()
    restores: ClassVar[tuple[str, ...]] = ()
    scratch: ClassVar[tuple[str, ...]] = ()
    tolerance: ClassVar[Tolerance | Mapping[str, Tolerance]] = EXACT
    allocation: ClassVar[str | int] = "transient"
    warmup: ClassVar[int] = 2
    inert: ClassVar[Mapping[str, str]] = {}

    def allocate(self, device: torch.device) -> Buffers:
        """Every buffer the graph will ever touch; called once per object, at prepare time."""
        raise NotImplementedError

    def cases(self) -> SearchStrategy[Case]:
        """What may change between replays: a Hypothesis strategy, usually `graphcheck.case`."""
        raise NotImplementedError

    def stage(self, buffers: Buffers, case: Case) -> None:
        """Bring ``case`` into the buffers, in place, outside the graph, before every replay.

        Raises:
            CaseRefused: (or any ValueError) the case lies outside what the component was built for.
        """
        raise NotImplementedError

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        """The captured region. Returns the declared outputs by name."""
        raise NotImplementedError

    def record(self, buffers: Buffers) -> Recorded | None:
        """For code that makes its own graph: capture `run` with that library and hand over what replays it.

        None, the default, lets the harness capture `run`. Warm-up and the eager arm call `run` in either case.
        """
        return None

    def around_warmup(self, buffers: Buffers) -> AbstractContextManager[None]:
        """Entered around each warm-up run: where an engine's save and restore lives."""
        return nullcontext()

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        """How the eager engine runs this case, where that is other code; arm B uses it."""
        return self.run(buffers)

    def observe(self, buffers: Buffers, outputs: Mapping[str, torch.Tensor]) -> Any:
        """Called outside the graph after each step; the tensors it returns (any nesting) are compared between arms."""
        return None

    def written(self, buffers: Buffers, case: Case) -> Mapping[str, Any]:
        """By name of an output or mutated buffer: the region this case writes; omitted names mean everything.

        A region is a boolean mask on the buffer's device, broadcastable to it, or an index expression.
        """
        return {}

    def key(self, case: Case) -> Hashable:
        """The graph key: one graph per key, all in one pool."""
        return None

    def reference(
        self, before: Mapping[str, torch.Tensor], case: Case, outputs: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor] | None:
        """Independent, obviously right answers in float64 for any outputs or mutated buffers; integers compare exactly.

        Args:
            before: the buffers before the run, CPU copies, by name.
            case: the case.
            outputs: what arm B returned, CPU copies, for choices that the reference follows.
        """
        return None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in CONTRACT:
            if name in cls.__dict__:
                _check_member(cls.__name__, name, cls.__dict__[name])

    def __setattr__(self, name: str, value: Any) -> None:
        if name in CONTRACT:
            _check_member(type(self).__name__, name, value)
        object.__setattr__(self, name, value)

    @property
    def title(self) -> str:
        """How reports call this component."""
        return getattr(self, "graphcheck_name", "") or type(self).__name__


METHODS = (
    "allocate",
    "cases",
    "stage",
    "run",
    "record",
    "around_warmup",
    "eager",
    "observe",
    "written",
    "key",
    "reference",
)
NAMES = ("mutates", "restores", "scratch")
CONTRACT = (*METHODS, *NAMES, "tolerance", "allocation", "warmup", "inert")


def _check_member(owner: str, name: str, value: Any) -> None:
    """Raise ContractError if ``value`` cannot stand for the member ``name``."""
    wanted = ""
    if name in METHODS:
        wanted = "" if callable(value) or isinstance(value, (staticmethod, classmethod)) else "a method"
    elif isinstance(value, property):
        return
    elif name in NAMES:
        right = isinstance(value, tuple) and all(isinstance(item, str) for item in value)
        wanted = "" if right else "a tuple of buffer names"
    elif name == "tolerance":
        right = isinstance(value, Tolerance) or (
            isinstance(value, Mapping) and all(isinstance(item, Tolerance) for item in value.values())
        )
        wanted = "" if right else "a Tolerance, or a mapping of output names to Tolerance"
    elif name == "allocation":
        right = value in ("transient", "none") or (
            isinstance(value, int) and not isinstance(value, bool) and value >= 0
        )
        wanted = "" if right else '"transient", "none" or a byte budget'
    elif name == "warmup":
        wanted = "" if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else "a whole number >= 0"
    elif name == "inert":
        right = isinstance(value, Mapping) and all(isinstance(item, str) and item for item in value.values())
        wanted = "" if right else "a mapping of case fields to reasons"
    if wanted:
        raise ContractError(
            f"{owner}.{name} is {value!r}, which hides a member of the component contract; "
            f"it must be {wanted}: rename the attribute or give it that form"
        )
