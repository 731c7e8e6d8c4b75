"""What a kernel does wrong: a bound, an order, a mask, a length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from graphcheck import Buffers, Case
from graphcheck.zoo import Entry
from msa import answer
from msa.bench import Bench, Variant
from msa.component.passes import Sparse
from msa.component.steps import Overlap
from msa.geometry import Geometry
from msa.ops import sparse_gqa
from msa.overlap import correct_lengths
from msa.zoo.frozen import CountsPerRow

# Two requests, two query tokens each; as little of everything as lets a selection leave pages out.
_GEOMETRY = Geometry(
    q_heads=2,
    kv_heads=1,
    index_heads=1,
    head_dim=8,
    page_size=8,
    top_k=4,
    max_batch=2,
    max_pages=8,
    num_pages=16,
    max_seq_len=60,
    dtype=torch.float32,
)
TINY = {"q2": Variant(_GEOMETRY, 2, 2)}


@dataclass(frozen=True)
class Arguments:
    """What an attention kernel is launched with, shapes as in `msa.ops.sparse_gqa`."""

    q: torch.Tensor
    page_ids: torch.Tensor
    page_table: torch.Tensor
    row_requests: torch.Tensor
    kv_lens: torch.Tensor
    qo_offsets: torch.Tensor


class OwnAttention(Sparse):
    """Attention over given pages by a kernel of the component's own, for the bucket and for each request."""

    VARIANTS = TINY
    kernels = "portable"

    def attend(self, out: torch.Tensor, bench: Bench, given: Arguments, captured: bool) -> None:
        """The kernel: attention [T, Hq, D] of some rows; ``captured`` in the graph's launch, of the whole bucket."""
        pages = (given.page_ids, given.page_table, given.row_requests, given.kv_lens, given.qo_offsets)
        sparse_gqa(out, given.q, bench.cache.k, bench.cache.v, *pages, bench.driver.geometry.scale)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        bench = self.benches[self.active]
        driver, ladder = bench.driver, bench.driver.ladder
        driver.plan()
        pages = (driver.page_ids, driver.page_table, ladder.row_requests)
        self.attend(driver.out, bench, Arguments(bench.q, *pages, driver.kv_lens, ladder.qo_offsets), captured=True)
        return {"out": driver.out}

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        bench = self.bench(case)
        driver = bench.driver
        driver.out.zero_()
        for request in self.planned(case).requests:
            if request.width:
                rows = request.rows
                pages = (driver.page_ids[rows], request.page_table, request.row_requests)
                given = Arguments(bench.q[rows], *pages, request.kv_lens, request.qo_offsets)
                self.attend(driver.out[rows], bench, given, captured=False)
        return {"out": driver.out}


class SeesOneMore(OwnAttention):
    """The bound of a row is one token too far: each draft attends to the next one."""

    def attend(self, out: torch.Tensor, bench: Bench, given: Arguments, captured: bool) -> None:
        super().attend(out, bench, replace(given, qo_offsets=given.qo_offsets + 1), captured)


class WeighsWithZero(OwnAttention):
    """Only weights are masked: zero times what stands behind a row, in the row's own page, is NaN where that is NaN."""

    def attend(self, out: torch.Tensor, bench: Bench, given: Arguments, captured: bool) -> None:
        super().attend(out, bench, given, captured)
        geometry = bench.driver.geometry
        column = given.qo_offsets.clamp(min=0).to(torch.int64) // geometry.page_size
        page = given.page_table.index_select(0, given.row_requests).gather(1, column.unsqueeze(1)).squeeze(1)
        values = bench.cache.v.index_select(0, page.clamp(0, geometry.num_pages))
        added = (values * 0.0).sum(2).masked_fill((given.qo_offsets < 0).view(-1, 1, 1), 0.0)
        out.add_(added.repeat_interleave(geometry.group, 1))


class SplitsByRows(OwnAttention):
    """Two programs share a row of a small batch, to fill the device: its bits follow from the rows beside it."""

    def attend(self, out: torch.Tensor, bench: Bench, given: Arguments, captured: bool) -> None:
        programs = 2 if out.shape[0] < 4 else 1
        # What one program visits is added before what the other does.
        visited = given.page_ids.unflatten(2, (-1, programs)).transpose(2, 3).flatten(2)
        super().attend(out, bench, replace(given, page_ids=visited.contiguous()), captured)


class MergesBackward(OwnAttention):
    """The captured kernel adds the parts from the last to the first, the eager one from the first to the last."""

    def attend(self, out: torch.Tensor, bench: Bench, given: Arguments, captured: bool) -> None:
        ids = given.page_ids.flip(2) if captured else given.page_ids
        super().attend(out, bench, replace(given, page_ids=ids), captured)


class EmitsAsFound(CountsPerRow):
    """The forced page, which is the row's own, stands first in the list: it was found first."""

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        return self.finished(super().run(buffers))

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        return self.finished(super().eager(buffers, case))

    def finished(self, outputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """The outputs with the list [T, Hkv, K] as the kernel writes it."""
        page_ids = outputs["page_ids"]
        last = page_ids.amax(2, keepdim=True)
        rest = page_ids.masked_fill(page_ids == last, -1)
        page_ids.copy_(torch.cat([last, rest.narrow(2, 0, rest.shape[2] - 1)], 2))
        return outputs


class PlansCorrected(Overlap):
    """Positions and slots of the rows, from lengths that are corrected inside the graph."""

    VARIANTS = TINY
    kernels = "portable"
    writes = False
    derived = ("qo_offsets", "extents", "kv_lens")
    inert = {"x": "positions follow from lengths", "kv": "nothing reads the cache"}

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        bench = self.benches[self.active]
        self.correct(bench)
        ladder = bench.driver.ladder
        return {"valid_pages": ladder.valid_pages, "slots": ladder.slots}

    def correct(self, bench: Bench) -> None:
        """The lengths and what follows from them."""
        driver, overlap = bench.driver, bench.overlap
        correct_lengths(driver.kv_lens, overlap.staged, overlap.accepted, driver.qo_len)
        driver.plan()

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        ladder, planned = self.bench(case).driver.ladder, self.planned(case)
        pages = torch.cat([request.valid_pages for request in planned.requests])
        return {
            "valid_pages": self.padded(ladder.valid_pages, pages, 0),
            "slots": self.padded(ladder.slots, planned.slots, ladder.geometry.dummy_slot),
        }

    def reference(
        self, before: Mapping[str, torch.Tensor], case: Case, outputs: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        scene = self.scene(case)
        return {"slots": answer.slots(scene), "valid_pages": scene.valid_pages()}


class PlansStaged(PlansCorrected):
    """Rows are planned in the kernel before the correction: they end where the staged length does."""

    def correct(self, bench: Bench) -> None:
        driver, overlap = bench.driver, bench.overlap
        driver.kv_lens.copy_(overlap.staged)
        driver.plan()
        correct_lengths(driver.kv_lens, overlap.staged, overlap.accepted, driver.qo_len)


ZOO = [
    Entry("GC961", "msa-sees-one-more", SeesOneMore, OwnAttention, "each row sees one token too many"),
    Entry("GC961", "msa-weighs-with-zero", WeighsWithZero, OwnAttention, "values behind a row are not masked"),
    Entry("GC951", "msa-merges-backward", MergesBackward, OwnAttention, "parts of a sum are added in reverse"),
    Entry("GC951", "msa-splits-by-rows", SplitsByRows, OwnAttention, "the split follows from the number of rows"),
    Entry("GC961", "msa-emits-as-found", EmitsAsFound, CountsPerRow, "the selected pages are not sorted"),
    Entry("GC312", "msa-plans-staged", PlansStaged, PlansCorrected, "rows are planned from the length of before"),
]
