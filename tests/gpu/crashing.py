"""Components that bring the process down at some length, and one that does not."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from graphcheck import Buffers, Case
from graphcheck.zoo.rows import ROWS, MaskedSum

FROM = 13


class ReadsOutOfBounds(MaskedSum):
    """A table of 13 entries is read at the length: from 13 on that is past its end."""

    reference = MaskedSum.__bases__[0].reference

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(**dict(super().allocate(device).items()), table=torch.ones(FROM, device=device))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        weight = buffers.table.index_select(0, buffers.lens)
        buffers.out.copy_(self.masked(buffers).sum(1) * weight)
        return {"out": buffers.out}


@lru_cache
def spinning_kernel() -> Any:
    import cupy

    source = r"""
    extern "C" __global__ void spin(const int* lens, volatile int* flag, int from) {
        while (lens[threadIdx.x] >= from && flag[0] == 0) {}
    }
    """
    return cupy.RawKernel(source, "spin")


class Hangs(MaskedSum):
    """A kernel waits for a flag that nobody sets, if a row has 13 tokens or more."""

    def allocate(self, device: torch.device) -> Buffers:
        flag = torch.zeros(1, dtype=torch.int32, device=device)
        return Buffers(**dict(super().allocate(device).items()), flag=flag)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        import cupy

        with cupy.cuda.Stream.from_external(torch.cuda.current_stream()):
            pointers = (np.uint64(buffers.lens.data_ptr()), np.uint64(buffers.flag.data_ptr()))
            spinning_kernel()((1,), (ROWS,), (*pointers, np.int32(FROM)))
        return super().run(buffers)


class RunsOutOfMemory(MaskedSum):
    """Scratch is sized by a power of the longest row: from 13 on no device has that much."""

    longest = 0

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.longest = int(case.lens.max())

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        if self.longest >= FROM:
            torch.empty(self.longest**11, device=buffers.x.device)
        return super().run(buffers)


class Finishes(MaskedSum):
    """The masked sum as it is."""
