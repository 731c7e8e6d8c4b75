"""Everything that is watched while one region is captured, and what it amounts to."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

import torch

from graphcheck.backend.cuda.compiling import Compilations
from graphcheck.backend.cuda.foreign import ForeignAllocations, pinned_finding
from graphcheck.backend.cuda.memory import History
from graphcheck.backend.cuda.oplog import FunctionLog, Log, OperatorLog
from graphcheck.backend.cuda.random_state import RandomState
from graphcheck.backend.cuda.refusal import refused
from graphcheck.backend.protocol import Allocation
from graphcheck.errors import CaptureRefused
from graphcheck.finding import Finding, user_location
from graphcheck.graph.nodes import Node


class Watch:
    """The watchers of one capture; enter it around the region itself, after the capture has begun.

    Attributes:
        blocks: address and size of the allocator's blocks in use before the capture.
    """

    def __init__(self) -> None:
        self.blocks: dict[int, int] = {}
        self.log = Log()
        self.foreign = ForeignAllocations()
        self._history = History()
        self._compilations = Compilations()
        self._random = RandomState()
        self._collections: list[Finding] = []
        self._stack = ExitStack()

    def __enter__(self) -> Watch:
        stack = self._stack
        self._history.start()
        stack.callback(self._history.stop)
        stack.enter_context(self._compilations)
        stack.enter_context(self._random)
        stack.enter_context(self.foreign)
        stack.enter_context(FunctionLog(self.log))
        stack.enter_context(OperatorLog(self.log, capturing=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @contextmanager
    def collections(self) -> Iterator[None]:
        """Inside, the garbage collector does not run for reasons of ours; one of the region's is noted if it destroys a
        graph."""

        alive: list[weakref.ref[Any]] = []

        def note(phase: str, info: dict[str, int]) -> None:
            if phase == "start":
                # By type: asking a dead proxy for its class raises.
                found = [each for each in gc.get_objects() if issubclass(type(each), torch.cuda.CUDAGraph)]
                alive[:] = map(weakref.ref, filter(_holds, found))
                found.clear()
            elif any(each() is None for each in alive):
                self._collections.append(_collected(info.get("generation", 2)))

        collecting = gc.isenabled()
        gc.disable()
        gc.callbacks.append(note)
        try:
            yield
        finally:
            gc.callbacks.remove(note)
            if collecting:
                gc.enable()

    def refused(self, error: BaseException) -> CaptureRefused:
        """The refusal that an error of this capture amounts to."""
        found = refused(error, self.log, self.foreign.requests)
        if found.code == "GC608" and self._collections:
            cause = self._collections[0]
            return CaptureRefused(cause.code, cause.message, cause.advice, cause.where)
        return found

    def allocations(self, outputs: Mapping[str, torch.Tensor]) -> list[Allocation]:
        """What the region asked of torch's allocator, classed."""
        return self._history.allocations(outputs, set(self.log.born))

    def peak(self) -> int:
        """The most of it alive at one time, bytes."""
        return self._history.peak()

    def findings(self, allocations: Sequence[Allocation], nodes: Sequence[Node]) -> list[Finding]:
        """What the watchers saw in a capture that succeeded."""
        pinned = [pinned_finding(self.log.pinned[0])] if self.log.pinned else []
        return [
            *_escaped(self.log),
            *_born(allocations),
            *self._collections[:1],
            *self._random.findings(),
            *self._compilations.findings(),
            *pinned,
            *self.foreign.findings(list(nodes)),
        ]


def _holds(graph: torch.cuda.CUDAGraph) -> bool:
    """Whether the driver holds a graph for it: not where its capture failed, or where it was reset."""
    try:
        graph.pool()
    except RuntimeError:
        return False
    return True


def _collected(generation: int) -> Finding:
    return Finding(
        code="GC606",
        message="the garbage collector destroys a graph while a stream is capturing",
        where=user_location(),
        expected="no finaliser that calls the driver while a stream is capturing",
        got=f"a collection of generation {generation}",
        advice="gc.collect() before the capture and gc.disable() during it",
    )


def _escaped(log: Log) -> list[Finding]:
    """Work that ran at once on a stream outside the capture, and is in no graph."""
    if not log.escaped:
        return []
    name, where = log.escaped[0]
    return [
        Finding(
            code="GC204",
            message=f"{len(log.escaped)} operations ran on a stream that is not part of the capture, first {name}",
            where=where,
            expected="every launch of the region in the graph",
            got="work that ran once, while capturing, and never again",
            advice="let the side stream wait for the capturing stream first, and join it before the region ends",
        )
    ]


def _born(allocations: Sequence[Allocation]) -> list[Finding]:
    """Tensors made inside the capture that are alive after it and no outputs."""
    return [
        Finding(
            code="GC405",
            message=f"a tensor of {allocation.nbytes} bytes made inside the capture outlives it and is no output",
            where=allocation.where,
            expected="memory that lives on from step to step allocated before capture",
            got="memory of the graph's pool, which every replay may overwrite",
            advice="allocate it before the capture and pass it in",
        )
        for allocation in allocations
        if allocation.kind == "escaping"
    ]
