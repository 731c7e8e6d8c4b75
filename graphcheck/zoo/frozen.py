"""Host values, branches and plans frozen at capture."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from graphcheck.cases import Case
from graphcheck.component import Buffers
from graphcheck.strategies import case, contents, integers, lengths
from graphcheck.zoo import Entry
from graphcheck.zoo.rows import ROWS, WIDTH, MaskedSum, WithoutReference


class ScalesByNumber(WithoutReference):
    """The scale is a Python number, so it becomes a launch parameter."""

    scale = 1.0

    def cases(self) -> SearchStrategy[Case]:
        return case(lens=lengths(ROWS, 0, WIDTH, page=8), x=contents(("normal",)), scale=integers(1, 9))

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.scale = case.scale / 4

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.masked(buffers).sum(1) * self.scale)
        return {"out": buffers.out}


class ScalesByTensor(ScalesByNumber):
    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(**dict(super().allocate(device).items()), scale=torch.ones((), device=device))

    def stage(self, buffers: Buffers, case: Case) -> None:
        MaskedSum.stage(self, buffers, case)
        buffers["scale"].fill_(case.scale / 4)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.masked(buffers).sum(1) * buffers["scale"])
        return {"out": buffers.out}


class SlicesToLongest(MaskedSum):
    """The width of the sum is the longest row of the batch at hand: right up to the captured length."""

    width = WIDTH

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.width = max(1, int(case.lens.max()))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.masked(buffers)[:, : self.width].cumsum(1)[:, -1])
        return {"out": buffers.out}


class SumsToCapacity(MaskedSum):
    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.masked(buffers).cumsum(1)[:, -1])
        return {"out": buffers.out}


class BranchesOnFlag(WithoutReference):
    """A host flag selects which kernels are recorded."""

    negate = False

    def cases(self) -> SearchStrategy[Case]:
        return case(lens=lengths(ROWS, 1, WIDTH, page=8), x=contents(("normal",)), negate=st.booleans())

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.negate = case.negate

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        total = self.masked(buffers).sum(1)
        if self.negate:
            total = total.neg()
        buffers.out.copy_(total)
        return {"out": buffers.out}


class ChoosesByTensor(BranchesOnFlag):
    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(**dict(super().allocate(device).items()), sign=torch.ones((), device=device))

    def stage(self, buffers: Buffers, case: Case) -> None:
        MaskedSum.stage(self, buffers, case)
        buffers.sign.fill_(-1.0 if case.negate else 1.0)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.masked(buffers).sum(1) * buffers.sign)
        return {"out": buffers.out}


class KeysByFlag(BranchesOnFlag):
    """The same branch, with the flag in the graph key: one graph for each."""

    def key(self, case: Case) -> bool:
        return bool(case.negate)


class PackedRows(WithoutReference):
    """Rows packed one behind the other; a host planner writes where each row starts."""

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(
            **dict(super().allocate(device).items()),
            packed=torch.zeros(ROWS * WIDTH, device=device),
            starts=torch.zeros(ROWS, dtype=torch.int64, device=device),
        )

    def cases(self) -> SearchStrategy[Case]:
        return case(lens=lengths(ROWS, 1, WIDTH, page=8), x=contents(("normal",)))

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        lens = case.lens.long()
        rows = case.x.tensor(ROWS, WIDTH)
        packed = torch.cat([row[:length] for row, length in zip(rows, lens.tolist(), strict=True)])
        buffers.packed.copy_(torch.nn.functional.pad(packed, (0, ROWS * WIDTH - packed.numel())))
        self.plan(buffers, lens)

    def plan(self, buffers: Buffers, lens: torch.Tensor) -> None:
        """Write where each packed row starts. ``lens`` [rows] int64, host."""
        buffers.starts.copy_(lens.cumsum(0) - lens)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.gather(buffers, buffers.starts))
        return {"out": buffers.out}

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        lens = case.lens.long()
        buffers.out.copy_(self.gather(buffers, (lens.cumsum(0) - lens).to(buffers.x.device)))
        return {"out": buffers.out}

    def gather(self, buffers: Buffers, starts: torch.Tensor) -> torch.Tensor:
        """Sums [rows] over the packed rows that begin at ``starts`` [rows] int64, device."""
        index = (starts.unsqueeze(1) + buffers.columns).clamp(max=ROWS * WIDTH - 1)
        valid = buffers.columns < buffers.lens.unsqueeze(1)
        rows = buffers.packed.index_select(0, index.reshape(-1)).view(ROWS, WIDTH)
        return torch.where(valid, rows, torch.zeros_like(rows)).sum(1)


class PlansOnce(PackedRows):
    """The planner runs for the first batch only; lengths are refreshed, its table is not."""

    planned = False

    def plan(self, buffers: Buffers, lens: torch.Tensor) -> None:
        if not self.planned:
            super().plan(buffers, lens)
            self.planned = True


class ReadsUniformStride(PackedRows):
    """The region reads rows at a constant stride, as the capture batch of full rows had them; staging packs them."""

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        valid = buffers.columns < buffers.lens.unsqueeze(1)
        rows = buffers.packed.view(ROWS, WIDTH)
        buffers.out.copy_(torch.where(valid, rows, torch.zeros_like(rows)).sum(1))
        return {"out": buffers.out}


class ChoosesByLongest(SlicesToLongest):
    """The host picks a variant for short batches by the longest row; the variant reads eight columns."""

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        rows = self.masked(buffers)
        total = rows[:, :8].cumsum(1)[:, -1] if self.width <= 8 else rows.sum(1)
        buffers.out.copy_(total)
        return {"out": buffers.out}


class SumsByPointer(WithoutReference):
    """Each row is weighted by an expert, found through a table of device addresses."""

    experts = 4
    built = False

    def allocate(self, device: torch.device) -> Buffers:
        weights = torch.empty(self.experts, WIDTH, device=device)
        return Buffers(
            **dict(super().allocate(device).items()),
            weights=weights,
            base=torch.zeros((), dtype=torch.int64, device=device),
            table=torch.zeros(ROWS, dtype=torch.int64, device=device),
        )

    def cases(self) -> SearchStrategy[Case]:
        return case(
            lens=lengths(ROWS, 1, WIDTH, page=8),
            x=contents(("normal",)),
            weights=contents(("normal",)),
            routing=st.permutations(range(self.experts)),
        )

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        case.weights.fill(buffers.weights)
        buffers.base.fill_(buffers.weights.data_ptr())
        self.build(buffers, case)

    def build(self, buffers: Buffers, case: Case) -> None:
        """Write the address of each row's expert into the table."""
        stride = buffers.weights.stride(0) * buffers.weights.element_size()
        first = buffers.weights.data_ptr()
        buffers.table.copy_(torch.tensor([first + expert * stride for expert in case.routing]))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        # No kernel of torch follows an address, so the row is worked out; clamped, so that none is read out of bounds.
        stride = buffers.weights.stride(0) * buffers.weights.element_size()
        expert = ((buffers.table - buffers.base) // stride).clamp(0, self.experts - 1)
        buffers.out.copy_((self.masked(buffers) * buffers.weights.index_select(0, expert)).sum(1))
        return {"out": buffers.out}


class BuildsTableOnce(SumsByPointer):
    """The table of addresses is built for the first batch only."""

    def build(self, buffers: Buffers, case: Case) -> None:
        if not self.built:
            super().build(buffers, case)
            self.built = True


class KeysByBucket(WithoutReference):
    """One graph for each bucket; the attention window is a host number beside it."""

    window = WIDTH
    doubled = False

    def cases(self) -> SearchStrategy[Case]:
        return case(
            lens=lengths(ROWS, 1, WIDTH, page=8),
            x=contents(("normal",)),
            doubled=st.booleans(),
            window=st.sampled_from((4, WIDTH)),
        )

    def key(self, case: Case) -> Hashable:
        return bool(case.doubled)

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.window, self.doubled = int(case.window), bool(case.doubled)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        total = self.masked(buffers)[:, : self.window].sum(1)
        buffers.out.copy_(total * 2 if self.doubled else total)
        return {"out": buffers.out}


class KeysByBucketAndWindow(KeysByBucket):
    def key(self, case: Case) -> Hashable:
        return bool(case.doubled), int(case.window)


ZOO = [
    Entry("GC301", "scales-by-number", ScalesByNumber, ScalesByTensor, "a Python scale becomes a launch parameter"),
    Entry(
        "GC302", "slices-to-longest", SlicesToLongest, SumsToCapacity, "the width is the capture batch's longest row"
    ),
    Entry("GC303", "branches-on-flag", BranchesOnFlag, ChoosesByTensor, "a host flag selects the recorded kernels"),
    Entry("GC303", "branches-outside-key", BranchesOnFlag, KeysByFlag, "the same branch, cured by the graph key"),
    Entry("GC304", "chooses-by-longest", ChoosesByLongest, SumsToCapacity, "the host picks a variant by the lengths"),
    Entry("GC305", "plans-once", PlansOnce, PackedRows, "the host plan is not refreshed before a replay"),
    Entry("GC306", "builds-table-once", BuildsTableOnce, SumsByPointer, "a table of addresses is not rebuilt"),
    Entry("GC311", "keys-by-bucket", KeysByBucket, KeysByBucketAndWindow, "the graph key leaves out the window"),
    Entry(
        "GC312", "reads-uniform-stride", ReadsUniformStride, PackedRows, "staging packs rows, the region reads a stride"
    ),
]
