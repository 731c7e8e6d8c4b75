"""Real CUDA graphs: warm-up, capture and replay on one stream, one pool for all graphs of a component."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import torch

from graphcheck.backend.cuda.features import features
from graphcheck.backend.cuda.memory import History, poisoned_factories
from graphcheck.backend.cuda.oplog import FunctionLog, Log, OperatorLog
from graphcheck.backend.cuda.recording import CudaRecording
from graphcheck.backend.cuda.refusal import refused
from graphcheck.backend.protocol import Allocation, Recording
from graphcheck.errors import ComponentRaised, GraphcheckError
from graphcheck.finding import Finding, user_location


class CudaBackend:
    """CUDA graphs on the current device.

    Raises:
        EnvironmentUnable: there is no GPU, or torch is older than 2.9.
    """

    name = "cuda"

    def __init__(self) -> None:
        features()
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._stream = torch.cuda.Stream(self.device)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Everything inside runs on the stream that captures, so that staging, replay and reads are ordered."""
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            yield

    def allocating(self) -> AbstractContextManager[None]:
        """Inside, uninitialised device memory holds poison, as on the emulator."""
        return poisoned_factories()

    def pool(self) -> object:
        return torch.cuda.graph_pool_handle()

    def record(self, region: Callable[[], Mapping[str, torch.Tensor]], pool: Any) -> Recording:
        log = Log()
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        history = History()
        self.synchronize()
        collections: list[Finding] = []
        watch = _note_collections(collections)
        # The collector must not run for reasons of ours; a collection that the region asks for is noted.
        collecting = gc.isenabled()
        gc.disable()
        gc.callbacks.append(watch)
        try:
            graph.capture_begin(pool=pool)
            try:
                history.start()
                try:
                    with FunctionLog(log), OperatorLog(log, capturing=True):
                        outputs = dict(region())
                finally:
                    history.stop()
                graph.capture_end()
            except BaseException as error:
                self._abandon(graph)
                cause = error.cause if isinstance(error, ComponentRaised) else error
                if isinstance(cause, GraphcheckError) or not isinstance(cause, RuntimeError):
                    raise
                raise refused(cause, log) from cause
        finally:
            gc.callbacks.remove(watch)
            if collecting:
                gc.enable()
        allocations = history.allocations(outputs, set(log.born))
        found = [*_escaped(log), *_born(allocations), *collections[:1]]
        return CudaRecording(graph, outputs, log, allocations, history.peak(), found)

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a failed capture so that it does not colour the next one."""
        with suppress(RuntimeError):
            graph.capture_end()
        with suppress(RuntimeError):
            graph.reset()
        with suppress(RuntimeError):
            torch.cuda.synchronize()

    def first_difference(self, recording: Recording, region: Callable[[], object]) -> str | None:
        return None

    def written(self, region: Callable[[], object]) -> Sequence[torch.Tensor]:
        return []

    def damaged_guards(self) -> Sequence[Finding]:
        return []

    def rng_state(self) -> torch.Tensor:
        return torch.cuda.get_rng_state(self.device)

    def set_rng_state(self, state: torch.Tensor) -> None:
        torch.cuda.set_rng_state(state, self.device)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)


def _note_collections(found: list[Finding]) -> Callable[[str, dict[str, int]], None]:
    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            found.append(
                Finding(
                    code="GC606",
                    message=f"the garbage collector runs inside the capture (generation {info.get('generation')})",
                    where=user_location(),
                    expected="no finaliser that may call the driver while a stream is capturing",
                    got="a collection",
                    advice="collect before the capture and keep the collector off inside",
                )
            )

    return note


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


def _born(allocations: list[Allocation]) -> list[Finding]:
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
