"""What staging leaves behind, and what consumers keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from eagle3.component.accepting import Accept
from eagle3.component.models import BUCKET
from eagle3.component.overlapping import Overlap
from eagle3.component.speculation import pad
from eagle3.zoo.lengths import RestoresLengths
from graphcheck import Buffers, Case
from graphcheck.zoo import Entry


class RebindsDraftTable(RestoresLengths):
    """A resumed request has other pages, and its table is a new tensor; the graph reads the old one."""

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        loop = self.loops["l2"]
        table = self.draft_table(case).to(loop.page_table.device)
        loop.page_table = loop.ladder.page_table = loop.single.page_table = table
        buffers.draft_page_table_l2 = table


class FillsEveryRow(Accept):
    """Lengths of the whole bucket are staged; rows behind the batch are 0."""

    DRAFT_LENS = {"l3": 3}

    def allocate(self, device: torch.device) -> Buffers:
        buffers = super().allocate(device)
        buffers["kv_lens_l3"].zero_()
        return buffers

    def stage(self, buffers: Buffers, case: Case) -> None:
        held = buffers["kv_lens_l3"].clone()
        super().stage(buffers, case)
        self.put(buffers["kv_lens_l3"], held, case)

    def put(self, kv_lens: torch.Tensor, held: torch.Tensor, case: Case) -> None:
        """What is staged over the lengths ``held`` that an earlier batch left."""


class LeavesOldRows(FillsEveryRow):
    """Only the batch's rows are staged: the rows of a larger one before it stay alive."""

    def put(self, kv_lens: torch.Tensor, held: torch.Tensor, case: Case) -> None:
        kv_lens[case.size :].copy_(held[case.size :])


class CorrectsEachStep(Overlap):
    DRAFT_LENS = {"l3": 3}


class CorrectsOnce(CorrectsEachStep):
    """The correction is thought to be set up by its first call, which is a warm-up run."""

    def allocate(self, device: torch.device) -> Buffers:
        self.corrected = False
        return super().allocate(device)

    def correct(self, variant: str) -> None:
        self.offsets[variant].correct(self.lengths[variant])
        if not self.corrected:
            self.corrected = True
            super().correct(variant)


class AppliesOffsetsTwice(CorrectsEachStep):
    """The hook takes the offsets off the lengths, and so does the preparation of inputs behind it."""

    def correct(self, variant: str) -> None:
        super().correct(variant)
        lengths, offsets = self.lengths[variant], self.offsets[variant]
        lengths.kv_lens.add_(offsets.len_offsets).clamp_(min=0)


class PutsDummiesFirst(CorrectsEachStep):
    """The previous batch was padded in front, and the host looks its rows up as if it were padded behind."""

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        counts = self.counts[case.variant]
        shifted = torch.roll(torch.flip(pad(self.kept(case)), (0,)), BUCKET - case.size)
        counts.copy_(shifted)


class ClonesCounts(Accept):
    """The step's counts are a new tensor; the host reads them while the next step runs, from a copy."""

    DRAFT_LENS = {"l3": 3}

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        return self.given(super().run(buffers))

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        return self.given(super().eager(buffers, case))

    def given(self, outputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """The outputs, and the counts once more in memory of the region's own."""
        return {**outputs, "counts": outputs["count"] + 0}

    def allocate(self, device: torch.device) -> Buffers:
        self.unread: list[torch.Tensor] = []
        return super().allocate(device)

    def observe(self, buffers: Buffers, outputs: Mapping[str, torch.Tensor]) -> Any:
        self.unread.append(self.keep(outputs["counts"]))
        return self.unread[-2:]

    def keep(self, count: torch.Tensor) -> torch.Tensor:
        """What the host holds on to."""
        return count.clone()


class KeepsCounts(ClonesCounts):
    """The host holds on to the graph's own counts, which the next step overwrites."""

    def keep(self, count: torch.Tensor) -> torch.Tensor:
        return count


ZOO = [
    Entry(
        "GC401",
        "eagle3-rebinds-draft-table",
        RebindsDraftTable,
        RestoresLengths,
        "a resumed request gets a new table tensor",
    ),
    Entry(
        "GC702",
        "eagle3-leaves-old-rows",
        LeavesOldRows,
        FillsEveryRow,
        "rows of a larger batch stay alive behind a smaller one",
    ),
    Entry("GC602", "eagle3-corrects-once", CorrectsOnce, CorrectsEachStep, "the correction runs in warm-up only"),
    Entry(
        "GC312",
        "eagle3-applies-offsets-twice",
        AppliesOffsetsTwice,
        CorrectsEachStep,
        "rejected drafts are taken off twice",
    ),
    Entry(
        "GC312",
        "eagle3-puts-dummies-first",
        PutsDummiesFirst,
        CorrectsEachStep,
        "corrections go to the rows of dummies",
    ),
    Entry("GC501", "eagle3-keeps-counts", KeepsCounts, ClonesCounts, "counts are read after the next step has run"),
]
