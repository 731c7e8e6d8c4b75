"""Real CUDA graphs: warm-up, capture and replay on one stream, one pool for all graphs of a component."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch

from graphcheck.backend.cuda.adopted import Adopted
from graphcheck.backend.cuda.features import features
from graphcheck.backend.cuda.guards import Guards
from graphcheck.backend.cuda.memory import poisoned_factories
from graphcheck.backend.cuda.recording import CudaRecording
from graphcheck.backend.cuda.refusal import is_exhausted
from graphcheck.backend.cuda.watch import Watch
from graphcheck.backend.overwriting import overwriting
from graphcheck.backend.protocol import Recording
from graphcheck.component import Recorded
from graphcheck.errors import ComponentRaised, GraphcheckError
from graphcheck.finding import Finding
from graphcheck.graph.segments import active_blocks, pool_layout

T = TypeVar("T")


class CudaBackend:
    """CUDA graphs on the current device.

    Raises:
        EnvironmentUnable: there is no GPU, or torch is older than 2.9.
    """

    name = "cuda"
    pool_options = True

    def __init__(self) -> None:
        features()
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._stream = torch.cuda.Stream(self.device)
        self._guards = Guards()
        self._spot = torch.zeros(1, device=self.device)
        # A graph that an earlier component left in a cycle would be destroyed inside a capture of this one.
        gc.collect()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Everything inside runs on the stream that captures, so that staging, replay and reads are ordered."""
        self._guards.forget()
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            yield

    @contextmanager
    def allocating(self) -> Iterator[None]:
        """Inside, uninitialised device memory holds poison, and buffers come from a pool with guard bands."""
        with self._guards.allocating(), poisoned_factories():
            yield

    def pool(self) -> object:
        return torch.cuda.graph_pool_handle()

    def record(self, region: Callable[[], Mapping[str, torch.Tensor]], pool: Any) -> Recording:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        watch = Watch()

        def captured() -> Mapping[str, torch.Tensor]:
            watch.blocks = active_blocks({"segments": torch.cuda.memory_snapshot()})
            graph.capture_begin(pool=pool)
            try:
                with watch:
                    outputs = dict(region())
                graph.capture_end()
            except BaseException:
                self._abandon(graph, pool)
                raise
            return outputs

        outputs = self._watched(watch, captured)
        return CudaRecording(graph, outputs, watch)

    def neighbour(self, pool: Any, outputs: Sequence[torch.Tensor]) -> Recording | None:
        self.synchronize()
        free, segments = pool_layout({"segments": torch.cuda.memory_snapshot()}, pool)
        inside = [tensor for tensor in outputs if tensor.is_cuda and segments.find(tensor.data_ptr()) is not None]
        return self.record(overwriting(free, inside, self.device), pool) if free or inside else None

    def adopt(self, record: Callable[[], Recorded]) -> Recording:
        watch = Watch()

        def captured() -> Recorded:
            with watch:
                return record()

        recorded = self._watched(watch, captured)
        return CudaRecording(Adopted(recorded), dict(recorded.outputs), watch)

    def _watched(self, watch: Watch, captured: Callable[[], T]) -> T:
        """Carry out a capture; what the driver refuses becomes a refusal with its code and the user's line."""
        self.synchronize()
        try:
            with watch.collections():
                return captured()
        except BaseException as error:
            # No name may hold what is raised from: its traceback holds this frame, and the cycle would keep the graph.
            if not _is_refusal(_cause(error)):
                raise
            raise watch.refused(_cause(error)) from _cause(error)
        finally:
            watch.log.held.clear()

    def _abandon(self, graph: torch.cuda.CUDAGraph, pool: Any) -> None:
        """End a failed capture so that it does not colour the next one.

        Where the driver has invalidated the capture, torch's own end stops half way: the allocator goes on routing to
        the pool, and the generator takes itself to be capturing until a later capture ends well.
        """
        # torch warns of a graph that is empty, which one that is dropped may be.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                graph.capture_end()
            except RuntimeError:
                with suppress(RuntimeError):
                    torch._C._cuda_endAllocateToPool(self.device.index, pool)
                    torch._C._cuda_releasePool(self.device.index, pool)
            with suppress(RuntimeError):
                graph.reset()
            with suppress(RuntimeError):
                torch.cuda.synchronize()
            healing = torch.cuda.CUDAGraph()
            with suppress(RuntimeError):
                healing.capture_begin()
                self._spot.zero_()
                healing.capture_end()
                healing.reset()

    def first_difference(self, recording: Recording, region: Callable[[], object]) -> str | None:
        return None

    def elements_written(
        self, action: Callable[[], object], tensors: Mapping[str, torch.Tensor]
    ) -> tuple[object, Mapping[str, torch.Tensor] | None]:
        return action(), None

    def damaged_guards(self) -> Sequence[Finding]:
        return self._guards.damaged()

    def rng_state(self) -> torch.Tensor:
        return torch.cuda.get_rng_state(self.device)

    def set_rng_state(self, state: torch.Tensor) -> None:
        torch.cuda.set_rng_state(state, self.device)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def sound(self) -> bool:
        """Whether pinned memory can still be had.

        A failed capture may leave an event in torch's pinned allocator that the driver never answers for, and every
        later request of pinned memory in the process fails with "invalid argument".
        """
        try:
            torch.empty(1, pin_memory=True)
        except RuntimeError:
            return False
        return True


def _cause(error: BaseException) -> BaseException:
    """What the component raised, where the error says that it did."""
    return error.cause if isinstance(error, ComponentRaised) else error


def _is_refusal(error: BaseException) -> bool:
    """Whether the driver, or torch for it, has refused a call of the region."""
    return isinstance(error, RuntimeError) and not isinstance(error, GraphcheckError) and not is_exhausted(error)
