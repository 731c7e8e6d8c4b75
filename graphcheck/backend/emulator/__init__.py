"""CUDA-graph semantics on a machine without a GPU, for unmodified torch code that says ``device="cuda"``.

Device tensors are wrappers around CPU tensors; a dispatch mode runs each operator at once or, while a stream is
capturing, puts it onto a tape of addresses, geometry and scalars. A replay runs the tape on the raw memory.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from graphcheck.backend.emulator import footprint, graphs, surface
from graphcheck.backend.emulator.compared import first_difference
from graphcheck.backend.emulator.device import DEVICE
from graphcheck.backend.emulator.generator import GENERATORS
from graphcheck.backend.emulator.memory import HEAP, Pool
from graphcheck.backend.emulator.ordering import ORDER
from graphcheck.backend.emulator.recording import EmulatedRecording, abandon
from graphcheck.backend.emulator.streams import CAPTURING, StreamContext
from graphcheck.backend.emulator.tensor import CUDA, DeviceTensor
from graphcheck.backend.overwriting import overwriting
from graphcheck.backend.protocol import Recording
from graphcheck.component import Recorded
from graphcheck.errors import EnvironmentUnable, UsageError
from graphcheck.finding import Finding


class EmulatorBackend:
    """The emulated device as a backend."""

    name = "emulator"
    pool_options = True

    def __init__(self) -> None:
        self.device = CUDA

    def active(self) -> AbstractContextManager[None]:
        """Make ``cuda:0`` usable inside the block; everything is undone when the outermost block is left."""
        return surface.activated()

    def allocating(self) -> AbstractContextManager[None]:
        """Nothing to do: uninitialised memory always holds poison here."""
        return nullcontext()

    def pool(self) -> Pool:
        """A new private pool."""
        return graphs.pool_of(None)

    def record(self, region: Callable[[], Mapping[str, torch.Tensor]], pool: object) -> EmulatedRecording:
        """Capture ``region`` once, without running its operators.

        Raises:
            CaptureRefused: CUDA refuses something that the region does, also where the region swallowed the refusal.
        """
        if not isinstance(pool, Pool):
            raise UsageError("record: the pool must come from this backend's pool()")
        ORDER.settle()
        with StreamContext(CAPTURING), _collector_off():
            capture = graphs.begin(pool)
            try:
                outputs = region()
            except BaseException as error:
                DEVICE.capture = None
                abandon(capture)
                if capture.refusal is not None and capture.refusal is not error:
                    raise capture.refusal from error
                raise
            return graphs.end(capture, outputs)

    def neighbour(self, pool: object, outputs: Sequence[torch.Tensor]) -> EmulatedRecording | None:
        """A graph that overwrites the free blocks of ``pool`` and those of ``outputs`` that lie there."""
        if not isinstance(pool, Pool):
            raise UsageError("neighbour: the pool must come from this backend's pool()")
        sizes = [block.capacity for block in pool.vacant]
        inside = [
            tensor for tensor in outputs if isinstance(tensor, DeviceTensor) and tensor._handle.block.pool is pool
        ]
        if not sizes and not inside:
            return None
        recording = self.record(overwriting(sizes, inside, self.device), pool)
        recording.ordered = False
        return recording

    def adopt(self, record: Callable[[], Recorded]) -> Recording:
        """Raises EnvironmentUnable: what another library captures cannot be seen without a GPU."""
        raise EnvironmentUnable(
            "the component captures with a library of its own, which the emulator cannot see; use --backend cuda"
        )

    def first_difference(self, recording: Recording, region: Callable[[], object]) -> str | None:
        """The first recorded operation whose result differs from that of the region run eagerly, in words."""
        if not isinstance(recording, EmulatedRecording):
            raise UsageError("first_difference: the recording must come from this backend's record()")
        return first_difference(recording, region)

    def elements_written(
        self, action: Callable[[], object], tensors: Mapping[str, torch.Tensor]
    ) -> tuple[object, Mapping[str, torch.Tensor] | None]:
        """Carry out ``action``; its result and the elements of the named tensors that it wrote."""
        return footprint.elements_written(action, tensors)

    def damaged_guards(self) -> Sequence[Finding]:
        """Findings for guard bands that lost their pattern, which is written again."""
        return [
            Finding(
                code="GC962",
                message=f"something wrote outside the allocation of {block.nbytes} bytes at {block.address:#x}",
                expected="guard bands unchanged",
                got="a guard band was overwritten",
                advice="check the bounds of the kernels that write it",
            )
            for block in sorted(HEAP.live, key=lambda block: block.address)
            if block.damaged()
        ]

    def rng_state(self) -> torch.Tensor:
        """State of the default device generator."""
        return GENERATORS.get_state()

    def set_rng_state(self, state: torch.Tensor) -> None:
        """Put back what `rng_state` returned."""
        GENERATORS.set_state(state)

    def sound(self) -> bool:
        """Always: a failed capture is dropped whole."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for: every operation has run when its call returns."""
        surface.synchronize()


__all__ = ["EmulatorBackend"]


@contextmanager
def _collector_off() -> Iterator[None]:
    """Inside, the garbage collector runs only where the region asks for it: what it would find here is the harness's."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
