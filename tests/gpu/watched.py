"""Components that do inside the capture what only a real device lets happen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from graphcheck import Buffers
from graphcheck.zoo.rows import ROWS, WIDTH, MaskedSum
from graphcheck.zoo.warmup import DropsGraphInside


class PinsMemory(MaskedSum):
    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        torch.empty(8, pin_memory=True)
        return super().run(buffers)


class AllocatesInStreamOrder(MaskedSum):
    """``cudaMallocAsync`` while capturing becomes a memory node."""

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        from cuda.bindings import runtime

        stream = torch.cuda.current_stream().cuda_stream
        _, pointer = runtime.cudaMallocAsync(4096, stream)
        outputs = super().run(buffers)
        runtime.cudaFreeAsync(pointer, stream)
        return outputs


class AllocatesFromTheRuntime(MaskedSum):
    """``cudaMalloc`` while capturing is refused, without a word of it at the line that asked."""

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        from cuda.bindings import runtime

        _, pointer = runtime.cudaMalloc(4096)
        outputs = super().run(buffers)
        runtime.cudaFree(pointer)
        return outputs


class Collects(DropsGraphInside):
    """An old graph that only a reference cycle keeps alive is collected inside the region."""


@triton.jit
def row_sum(x, lens, out, width: tl.constexpr, extra: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, 32)
    mask = (columns < tl.load(lens + row)) & (columns < width)
    tl.store(out + row, tl.sum(tl.load(x + row * width + columns, mask=mask, other=0.0)) + extra * 0)


class ThroughTriton(MaskedSum):
    """Lengths are read in the kernel; it is compiled in warm-up."""

    extra = 0

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        row_sum[(ROWS,)](buffers.x, buffers.lens, buffers.out, WIDTH, self.extra)
        return {"out": buffers.out}


EXTRAS: Any = iter(range(1, 10**9))


class CompilesInCapture(ThroughTriton):
    """A constant of the kernel changes from run to run, so the capture compiles one of its own."""

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        self.extra = next(EXTRAS)
        return super().run(buffers)


@triton.jit
def row_sum_past_the_end(x, lens, out, width: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, 32)
    mask = (columns < tl.load(lens + row)) & (columns < width)
    tl.store(out + row, tl.sum(tl.load(x + row * width + columns, mask=mask, other=0.0)))
    tl.store(out + row + 1, 0.0, mask=row == 3)


class WritesPastTheEnd(ThroughTriton):
    """The last row also writes one element behind the output."""

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        row_sum_past_the_end[(ROWS,)](buffers.x, buffers.lens, buffers.out, WIDTH)
        return {"out": buffers.out}


STRAY: dict[str, torch.Tensor] = {}


class ReadsAGlobal(MaskedSum):
    """A tensor that only a module's dictionary holds is read by the graph."""

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        device = buffers.x.device
        if "bias" not in STRAY:
            STRAY["bias"] = torch.zeros(ROWS, device=device)
        buffers.out.copy_(self.masked(buffers).sum(1) + STRAY["bias"])
        return {"out": buffers.out}
