"""Reports of pinned host memory that a captured or queued copy reads too late."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from graphcheck.cases import Case
from graphcheck.component import Buffers
from graphcheck.strategies import case, contents
from graphcheck.zoo import Entry
from graphcheck.zoo.reports.attention import CAPACITY, EXACT_VALUES, B, DecodeAttention


def _wait_for_copies() -> None:
    """Every copy that was queued has read its source, which may be filled again."""
    torch.cuda.current_stream().synchronize()


class ReleasesPointerArray(DecodeAttention):
    """Rows of a grouped product are staged in pinned memory that goes back to the host allocator after the call."""

    warmup = 0
    scratch = ("pointers",)

    def allocate(self, device: torch.device) -> Buffers:
        self.staging: torch.Tensor | None = None
        return Buffers(
            **dict(super().allocate(device).items()), pointers=torch.zeros(B, dtype=torch.int64, device=device)
        )

    def cases(self) -> SearchStrategy[Case]:
        return case(tokens=contents(EXACT_VALUES), order=st.permutations(range(B)))

    def stage(self, buffers: Buffers, case: Case) -> None:
        self.stage_tokens(buffers, case)
        if self.staging is None:
            self.staging = torch.empty(B, dtype=torch.int64, pin_memory=True)
        _wait_for_copies()
        self.staging.copy_(torch.tensor(case.order))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        assert self.staging is not None
        buffers.pointers.copy_(self.staging, non_blocking=True)
        self.release()
        rows = buffers.kv[0].index_select(0, buffers.pointers.clamp(0, B - 1))
        buffers.out.copy_((rows * buffers.q.unsqueeze(1)).sum(1))
        return {"out": buffers.out}

    def release(self) -> None:
        """What becomes of the staging memory once the copy is queued."""
        self.staging = None


class RetainsPointerArray(ReleasesPointerArray):
    """The staging memory lives as long as the graph."""

    def release(self) -> None:
        pass


class DropsShapeVectors(DecodeAttention):
    """Dims and strides of a strided kernel are uploaded inside the capture, and the host vectors are dropped."""

    warmup = 0

    def allocate(self, device: torch.device) -> Buffers:
        self.host: list[torch.Tensor] = []
        return Buffers(**dict(super().allocate(device).items()), elements=torch.arange(B * CAPACITY, device=device))

    def cases(self) -> SearchStrategy[Case]:
        return case(tokens=contents(EXACT_VALUES), transposed=st.booleans())

    def stage(self, buffers: Buffers, case: Case) -> None:
        self.stage_tokens(buffers, case)
        if not self.host:
            self.host = [torch.empty(2, dtype=torch.int64, pin_memory=True) for _ in ("dims", "strides")]
        _wait_for_copies()
        self.host[0].copy_(torch.tensor([CAPACITY, B] if case.transposed else [B, CAPACITY]))
        self.host[1].copy_(torch.tensor([1, CAPACITY] if case.transposed else [CAPACITY, 1]))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        dims, strides = (vector.to(buffers.kv.device, non_blocking=True) for vector in self.host)
        self.release()
        width = dims[1].clamp(1, B * CAPACITY)
        row = torch.div(buffers.elements, width, rounding_mode="floor")
        offset = row * strides[0] + (buffers.elements - row * width) * strides[1]
        strided = buffers.kv[0].view(-1).index_select(0, offset.clamp(0, B * CAPACITY - 1))
        buffers.out.copy_((strided.view(B, CAPACITY) * buffers.q.unsqueeze(1)).sum(1))
        return {"out": buffers.out}

    def release(self) -> None:
        """What becomes of the host vectors once the uploads are queued."""
        self.host = []


class OwnsShapeVectors(DropsShapeVectors):
    def release(self) -> None:
        pass


class ReturnsIntoSource(DecodeAttention):
    """One graph reads a pinned buffer, and later writes its result into that same buffer."""

    scratch = ("device_lens",)

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(
            **dict(super().allocate(device).items()),
            device_lens=torch.zeros(B, device=device),
            host_lens=torch.zeros(B, pin_memory=True),
            host_result=torch.zeros(B, pin_memory=True),
        )

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        buffers.host_lens.copy_(case.kv_lens)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.device_lens.copy_(buffers.host_lens, non_blocking=True)
        buffers.device_lens.mul_(2)
        self.destination(buffers).copy_(buffers.device_lens, non_blocking=True)
        buffers.out.copy_(self.weighted(buffers, buffers.kv_lens).sum(1) + buffers.device_lens)
        return {"out": buffers.out}

    def destination(self, buffers: Buffers) -> torch.Tensor:
        """The pinned buffer that takes the doubled lengths."""
        return buffers.host_lens


class ReturnsElsewhere(ReturnsIntoSource):
    def destination(self, buffers: Buffers) -> torch.Tensor:
        return buffers.host_result


ZOO = [
    Entry(
        "GC407",
        "b025-pointer-array-released-after-call",
        ReleasesPointerArray,
        RetainsPointerArray,
        "the pinned source of a captured copy goes back to the host allocator",
    ),
    Entry(
        "GC407",
        "b027-shape-vectors-dropped-after-capture",
        DropsShapeVectors,
        OwnsShapeVectors,
        "dims and strides that a captured upload reads are dropped",
    ),
    Entry(
        "GC408",
        "b031-host-buffer-is-source-and-destination",
        ReturnsIntoSource,
        ReturnsElsewhere,
        "one graph copies from a pinned buffer and later into it",
    ),
]
