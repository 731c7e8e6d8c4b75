"""What is wrong in eager execution too."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from graphcheck import Buffers, Case
from graphcheck.zoo import Entry
from msa import answer
from msa.bench import Bench, small_variants
from msa.component.steps import Decode
from msa.ops import sparse_gqa


class ConsumesAscending(Decode):
    """The attention stops behind the row's own page, which in ascending order is the last."""

    kernels = "portable"
    VARIANTS = small_variants(4, bucket=3, pages=6)
    derived = (*Decode.derived, "page_ids")

    def order(self, page_ids: torch.Tensor, scores: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
        """The list as the consumer gets it, int32 [T, Hkv, K]. ``local`` [T, 1, 1] is each row's own page."""
        return page_ids

    def consume(self, bench: Bench) -> torch.Tensor:
        """Attention [T, Hq, D] by a consumer that leaves the list behind the row's own page."""
        driver = bench.driver
        local = (driver.ladder.valid_pages - 1).view(-1, 1, 1)
        ordered = self.order(driver.page_ids, driver.scores, local)
        reached = (ordered == local).to(torch.int32)
        ids = ordered.masked_fill(reached.cumsum(2) - reached > 0, -1)
        sparse_gqa(
            driver.out,
            bench.q,
            bench.cache.k,
            bench.cache.v,
            ids,
            driver.page_table,
            driver.ladder.row_requests,
            driver.kv_lens,
            driver.ladder.qo_offsets,
            driver.geometry.scale,
        )
        return driver.out

    def layer(self, bench: Bench) -> Mapping[str, torch.Tensor]:
        super().layer(bench)
        return {"scores": bench.driver.scores, "out": self.consume(bench)}

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        outputs = super().eager(buffers, case)
        bench = self.bench(case)
        bench.driver.plan()
        return {"scores": outputs["scores"], "out": self.consume(bench)}

    def reference(
        self, before: Mapping[str, torch.Tensor], case: Case, outputs: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        ids = answer.page_ids(self.scene(case), outputs["scores"])
        right = super().reference(before, case, {**outputs, "page_ids": ids})
        return {name: tensor for name, tensor in right.items() if name != "page_ids"}


class HandsOverScoreOrder(ConsumesAscending):
    """The consumer gets the pages as the selection ranked them, the forced one first."""

    def order(self, page_ids: torch.Tensor, scores: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
        ids = page_ids.to(torch.int64)
        rank = scores.permute(1, 0, 2).gather(2, ids.clamp(min=0))
        rank = rank.masked_fill(ids == local, float("inf")).masked_fill(ids < 0, float("-inf"))
        return page_ids.gather(2, rank.argsort(dim=2, descending=True, stable=True))


class GuardsEmptyRows(Decode):
    kernels = "portable"
    VARIANTS = small_variants(4, bucket=3, pages=6)

    def finish(self, out: torch.Tensor, bench: Bench) -> None:
        """What the attention does last with its output [T, Hq, D]."""

    def layer(self, bench: Bench) -> Mapping[str, torch.Tensor]:
        outputs = super().layer(bench)
        self.finish(bench.driver.out, bench)
        return outputs

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        outputs = super().eager(buffers, case)
        self.bench(case).driver.plan()
        self.finish(self.bench(case).driver.out, self.bench(case))
        return outputs


class DividesByNothing(GuardsEmptyRows):
    """The division by the softmax sum is not guarded, so that a row which sees no token is 0 / 0."""

    def finish(self, out: torch.Tensor, bench: Bench) -> None:
        out.div_((bench.driver.ladder.extents > 0).view(-1, 1, 1))


ZOO = [
    Entry("GC961", "msa-score-order", HandsOverScoreOrder, ConsumesAscending, "pages arrive in score order"),
    Entry("GC961", "msa-divides-by-nothing", DividesByNothing, GuardsEmptyRows, "an empty row becomes NaN"),
]
