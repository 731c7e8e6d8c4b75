"""The masked sum through CuPy and cuda.core, launched on torch's stream or captured by the library itself."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from graphcheck import Buffers, Case, Recorded
from graphcheck.graph.driver import capturing_graph
from graphcheck.zoo.rows import ROWS, WIDTH, MaskedSum

SOURCE = r"""
extern "C" __global__ void row_sum(const float* x, const int* lens, float* out, int width, int bound) {
    int row = threadIdx.x;
    float sum = 0.0f;
    for (int column = 0; column < lens[row] && column < bound; ++column) sum += x[row * width + column];
    out[row] = sum;
}
"""


def arguments(buffers: Buffers, bound: int) -> tuple[Any, ...]:
    """What ``row_sum`` takes: three addresses and two numbers."""
    pointers = (buffers.x.data_ptr(), buffers.lens.data_ptr(), buffers.out.data_ptr())
    return (*map(np.uint64, pointers), np.int32(WIDTH), np.int32(bound))


class Bounded(MaskedSum):
    """The bound is the whole width, so the lengths are read on the device alone."""

    bound = WIDTH


class Longest(Bounded):
    """The bound is the longest row of the batch at hand, a number of the host that the capture freezes."""

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.bound = int(case.lens.max())


@lru_cache
def cupy_kernel() -> Any:
    import cupy

    return cupy.RawKernel(SOURCE, "row_sum")


def cupy_stream() -> Any:
    import cupy

    return cupy.cuda.Stream.from_external(torch.cuda.current_stream())


class ThroughCupy(Bounded):
    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        with cupy_stream():
            cupy_kernel()((1,), (ROWS,), arguments(buffers, self.bound))
        return {"out": buffers.out}


class ThroughCupyFrozen(Longest, ThroughCupy):
    pass


class CapturedByCupy(ThroughCupy):
    """CuPy captures and launches the graph; it keeps no node list to read."""

    def record(self, buffers: Buffers) -> Recorded:
        stream = cupy_stream()
        stream.begin_capture()
        outputs = self.run(buffers)
        graph = stream.end_capture()
        return Recorded(lambda: graph.launch(cupy_stream()), outputs)


class CapturedByCupyFrozen(Longest, CapturedByCupy):
    pass


class AllocatesInCupy(ThroughCupy):
    """An array of CuPy's pool is made inside the capture."""

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        import cupy

        with cupy_stream():
            cupy.empty(64, dtype=cupy.float32)
        return super().run(buffers)


@lru_cache
def core_kernel() -> Any:
    from cuda.core import Device, Program, ProgramOptions

    device = Device()
    device.set_current()
    return Program(SOURCE, "c++", ProgramOptions(arch=f"sm_{device.arch}")).compile("cubin").get_kernel("row_sum")


def core_stream() -> Any:
    from cuda.core import Stream

    return Stream.from_handle(torch.cuda.current_stream().cuda_stream)


class ThroughCore(Bounded):
    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        return self.launched(buffers, core_stream())

    def launched(self, buffers: Buffers, stream: Any) -> Mapping[str, torch.Tensor]:
        from cuda.core import LaunchConfig, launch

        pointers = (buffers.x.data_ptr(), buffers.lens.data_ptr(), buffers.out.data_ptr())
        launch(
            stream, LaunchConfig(grid=1, block=ROWS), core_kernel(), *pointers, np.int32(WIDTH), np.int32(self.bound)
        )
        return {"out": buffers.out}


class CapturedByCore(ThroughCore):
    """A cuda.core graph builder captures, and its graph is launched."""

    def record(self, buffers: Buffers) -> Recorded:
        from cuda.core import Device

        self.builder = Device().create_graph_builder()
        self.builder.begin_building()
        outputs = self.launched(buffers, self.builder)
        raw = capturing_graph(int(self.builder.stream.handle))
        graph = self.builder.end_building().complete()
        return Recorded(lambda: graph.launch(core_stream()), outputs, raw)


class CapturedByCoreFrozen(Longest, CapturedByCore):
    pass


class ThroughCoreFrozen(Longest, ThroughCore):
    pass
