"""What loops do to the lengths that their attention reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from hypothesis.strategies import SearchStrategy

from eagle3.component.drafting import Loop
from eagle3.component.models import BUCKET
from eagle3.component.overlapping import Overlap
from eagle3.lengths import DraftLengths, plan_draft
from eagle3.loop import DraftLoop
from eagle3.warmup import saved
from graphcheck import Buffers, Case, lengths
from graphcheck.zoo import Entry


class RestoresLengths(Loop):
    """The loop as it is, for two drafts: lengths are saved and restored around each warm-up run."""

    DRAFT_LENS = {"l2": 2}


class DriftsInWarmup(RestoresLengths):
    """The loop moves the lengths, and the next warm-up run starts from there: each adds what was kept."""

    @contextmanager
    def around_warmup(self, buffers: Buffers) -> Iterator[None]:
        yield


class CorrectsInPlace(Overlap):
    """The staged lengths themselves are corrected, so they are put back while the step is warmed up."""

    DRAFT_LENS = {"l2": 2}
    advanced = (*Overlap.advanced, "staged_lens")
    restored = ("staged_lens",)

    def correct(self, variant: str) -> None:
        offsets = self.offsets[variant]
        offsets.gather(self.counts[variant])
        offsets.staged_lens.add_(offsets.len_offsets)
        offsets.len_offsets.zero_()
        offsets.correct(self.lengths[variant])

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        outputs = super().eager(buffers, case)
        self.offsets[case.variant].staged_lens.copy_(self.lengths[case.variant].kv_lens)
        return outputs

    @contextmanager
    def around_warmup(self, buffers: Buffers) -> Iterator[None]:
        with saved({"staged_lens": self.offsets[self.active].staged_lens}):
            yield


class CorrectsAgainInWarmup(CorrectsInPlace):
    """Every warm-up run takes the rejected drafts off once more."""

    @contextmanager
    def around_warmup(self, buffers: Buffers) -> Iterator[None]:
        yield


class InertPadding(RestoresLengths):
    """Lengths of draft steps are the loop's own business; rows behind the batch stay 0."""

    advanced = ("past",)
    restored = ("past",)
    work = (*Loop.work, "kv_lens", "positions", "real", "draft_page_table")

    def fields(self) -> dict[str, SearchStrategy[Any]]:
        # Drafts that reach a page of their own are rare among arbitrary lengths.
        return {**super().fields(), "kv_lens": lengths(BUCKET, 14, 18)}

    def allocate(self, device: torch.device) -> Buffers:
        buffers = super().allocate(device)
        self.table = torch.empty_like(self.loops["l2"].page_table)
        return Buffers(**dict(buffers.items()), staged_table=self.table)

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.table.copy_(self.table_to_stage(case))
        self.table[case.size :].fill_(-1)

    def table_to_stage(self, case: Case) -> torch.Tensor:
        """The page table of real rows [B, W] int32, host."""
        return self.draft_table(case)

    def draft(self, loop: DraftLoop, tokens: torch.Tensor, captured: torch.Tensor) -> Mapping[str, torch.Tensor]:
        if loop is self.loops["l2"]:
            # A kernel that takes -1 as indexing does: the last page.
            torch.remainder(self.table, loop.geometry.num_pages, out=loop.page_table)
        loop.lengths.verify_lens()
        return super().draft(loop, tokens, captured)

    def reference(
        self, before: Mapping[str, torch.Tensor], case: Case, outputs: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        right = super().reference(before, case, outputs)
        return {name: tensor for name, tensor in right.items() if name in self.mutates}


class AdvancesPadding(InertPadding):
    """Each draft step adds one to every row: padding goes from 0 to 1, and has a slot to write to."""

    def new_loop(self, batch: int, draft_len: int, device: torch.device) -> DraftLoop:
        loop = super().new_loop(batch, draft_len, device)
        loop.lengths.draft_advance = _advancing_all(loop.lengths)  # type: ignore[method-assign]
        return loop


def _advancing_all(held: DraftLengths) -> Callable[[int], None]:
    ones = torch.ones_like(held.real)

    def draft_advance(step: int) -> None:
        plan_draft(held.past, ones, step + 1, held.kv_lens, held.draft_positions)

    return draft_advance


class ForgetsExtraTokens(InertPadding):
    """The draft's page table ends with the verify step; later draft steps follow entries that nobody wrote."""

    def fields(self) -> dict[str, SearchStrategy[Any]]:
        # All drafts are kept, and the verify step ends where a page does.
        return {**super().fields(), "kv_lens": lengths(BUCKET, 15, 16), "kept": lengths(BUCKET, 3, 3)}

    def table_to_stage(self, case: Case) -> torch.Tensor:
        return self.scene(case).padded()


class KeepsVerifyLengths(InertPadding):
    """The captured loop swaps a clone of the lengths in; the drivers hold the original, and read the verify step's.

    Rejected tokens are then among the keys of every draft step.
    """

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        lengths = self.loops[self.active].lengths
        original = lengths.kv_lens
        lengths.verify_lens()
        lengths.kv_lens = original.clone()
        try:
            return super().run(buffers)
        finally:
            lengths.kv_lens = original


ZOO = [
    Entry(
        "GC604", "eagle3-drifts-in-warmup", DriftsInWarmup, RestoresLengths, "the loop's lengths pile up over warm-ups"
    ),
    Entry(
        "GC604",
        "eagle3-corrects-again-in-warmup",
        CorrectsAgainInWarmup,
        CorrectsInPlace,
        "each warm-up run corrects the staged lengths once more",
    ),
    Entry(
        "GC703",
        "eagle3-advances-padding",
        AdvancesPadding,
        InertPadding,
        "padding rows go from length 0 to 1 and write",
    ),
    Entry(
        "GC312",
        "eagle3-forgets-extra-tokens",
        ForgetsExtraTokens,
        InertPadding,
        "draft steps reach beyond the page table",
    ),
    Entry(
        "GC312",
        "eagle3-keeps-verify-lengths",
        KeepsVerifyLengths,
        InertPadding,
        "draft steps read the verify step's lengths",
    ),
]
