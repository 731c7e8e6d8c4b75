"""``torch.cuda.CUDAGraph`` and ``torch.cuda.graph`` of the emulated device."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import torch

from graphcheck.backend.emulator.capture import Capture
from graphcheck.backend.emulator.device import DEVICE
from graphcheck.backend.emulator.memory import Pool
from graphcheck.backend.emulator.ordering import ORDER
from graphcheck.backend.emulator.recording import EmulatedRecording, abandon, finish
from graphcheck.backend.emulator.streams import CAPTURING, DEFAULT, Stream, StreamContext
from graphcheck.errors import CaptureRefused

_pools: dict[tuple[int, int], Any] = {}
_idents = itertools.count(1)


def pool_handle() -> tuple[int, int]:
    """The id of a new private pool."""
    return (0, next(_idents))


def pool_of(ident: Any) -> Pool:
    """The pool behind what ``graph_pool_handle()`` or ``graph.pool()`` gave; a new one for None."""
    if isinstance(ident, Pool):
        return ident
    ident = pool_handle() if ident is None else tuple(ident)
    held = _pools.get(ident)
    pool = held() if held is not None else None
    if pool is None:
        pool = Pool(ident)
        _pools[ident] = weakref.ref(pool)
    return pool


def begin(pool: Pool, generators: tuple[Any, ...] = ()) -> Capture:
    """Start a capture on the current stream."""
    if DEVICE.capture is not None:
        raise RuntimeError("a capture is already going on; end it before the next one begins")
    if DEVICE.stream is DEFAULT:
        raise RuntimeError(
            "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them on "
            "the default stream.)"
        )
    DEVICE.capture = Capture(pool, DEVICE.stream, generators)
    return DEVICE.capture


def end(capture: Capture, outputs: Mapping[str, torch.Tensor] | None) -> EmulatedRecording:
    """End the capture in progress."""
    if DEVICE.capture is not capture:
        raise RuntimeError("capture_end was called without a capture of this graph going on")
    DEVICE.capture = None
    return finish(capture, outputs)


class CUDAGraph:
    """A graph that user code captures and replays itself."""

    def __init__(self, keep_graph: bool = False) -> None:
        self.keep_graph = keep_graph
        self.recording: EmulatedRecording | None = None
        self._capture: Capture | None = None
        self._pool: Pool | None = None
        self._generators: list[Any] = []

    def register_generator_state(self, generator: Any) -> None:
        """Let the graph draw from ``generator``; each replay advances it."""
        self._generators.append(generator)

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        if self.recording is not None:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, reset it"
            )
        self._pool = pool_of(pool)
        self._capture = begin(self._pool, tuple(self._generators))

    def capture_end(self) -> None:
        if self._capture is None:
            raise RuntimeError("capture_end was called before capture_begin")
        capture, self._capture = self._capture, None
        self.recording = end(capture, None)

    def instantiate(self) -> None:
        self._held().steps()

    def replay(self) -> None:
        self._held().replay()

    def reset(self) -> None:
        """Drop the graph; the object may capture again."""
        if self.recording is not None:
            self.recording.close()
        self.recording = None

    def pool(self) -> tuple[int, int]:
        if self._pool is None:
            raise RuntimeError("pool() was called before capture_begin")
        return self._pool.ident

    def enable_debug_mode(self) -> None:
        return None

    def debug_dump(self, debug_path: str) -> None:
        """Write the recorded operations, one a line."""
        with open(debug_path, "w", encoding="utf-8") as file:
            file.writelines(f"{operation}\n" for operation in self._held().operations())

    def _held(self) -> EmulatedRecording:
        if self.recording is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        return self.recording

    def __del__(self) -> None:
        if DEVICE.capture is not None and self.recording is not None and _collecting:
            DEVICE.note(
                "GC606",
                "the garbage collector destroys a graph while a stream is capturing",
                "gc.collect() before the capture and gc.disable() during it",
            )
        self.reset()


class graph:  # noqa: N801 - the name is torch's
    """Captures the work inside the block into a graph."""

    default_capture_stream: Stream | None = None

    def __init__(
        self, cuda_graph: Any, pool: Any = None, stream: Any = None, capture_error_mode: str = "global", **_: Any
    ) -> None:
        self.cuda_graph = cuda_graph
        self._pool = pool
        self.stream = stream if stream is not None else CAPTURING
        self._context = StreamContext(self.stream)

    def __enter__(self) -> None:
        gc.collect()
        ORDER.settle()
        self._context.__enter__()
        try:
            self.cuda_graph.capture_begin(pool=self._pool)
        except BaseException:
            self._context.__exit__()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is not None and not isinstance(error, CaptureRefused):
                capture = self.cuda_graph._capture
                self.cuda_graph._capture = None
                DEVICE.capture = None
                if capture is not None:
                    abandon(capture)
                    if capture.refusal is not None:
                        raise capture.refusal from error
                return
            self.cuda_graph.capture_end()
        finally:
            self._context.__exit__()


_collecting: list[bool] = []


def on_collection(phase: str, info: dict[str, int]) -> None:
    """Callback of the garbage collector: finalisers that run inside it are marked."""
    if phase == "start":
        _collecting.append(True)
    elif _collecting:
        _collecting.pop()
