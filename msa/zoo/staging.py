"""What staging and warm-up do to lengths, tables, slots and buffers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from hypothesis.strategies import SearchStrategy

from graphcheck import Buffers, Case, lengths
from graphcheck.zoo import Entry
from msa import answer
from msa.bench import Bench, Variant, small, small_variants
from msa.component.attention import put_lengths
from msa.component.passes import KvWrite
from msa.component.steps import Decode, Overlap
from msa.ops import proxy_score
from msa.paging import flatten_into, pointers_into, unflatten_into
from msa.scene import Scene


class DriftsInWarmup(Decode):
    """The loop advances the lengths in place, and nobody puts them back between the warm-up runs."""

    kernels = "portable"
    VARIANTS = small_variants(4, bucket=3, pages=6)

    advanced = ("kv_lens",)
    restores = ("kv_lens_q4",)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        outputs = super().run(buffers)
        self.advance(buffers)
        return outputs

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        outputs = super().eager(buffers, case)
        self.advance(buffers)
        return outputs

    def advance(self, buffers: Buffers) -> None:
        """Every live row is one token longer."""
        buffers["kv_lens_q4"].add_(buffers["kv_lens_q4"] > 0)

    def written(self, buffers: Buffers, case: Case) -> Mapping[str, Any]:
        return {name: region for name, region in super().written(buffers, case).items() if name != "kv_lens_q4"}


class RestoresAfterWarmup(DriftsInWarmup):
    @contextmanager
    def around_warmup(self, buffers: Buffers) -> Iterator[None]:
        saved = buffers["kv_lens_q4"].clone()
        try:
            yield
        finally:
            buffers["kv_lens_q4"].copy_(saved)


class RestagesBoth(Overlap):
    """The flat table and its row pointers are rebuilt together from the corrected lengths."""

    kernels = "portable"
    VARIANTS = {"flat": Variant(small(3, 4), 4, 3)}

    work = ("page_table_flat", "kv_indices", "indptr")

    def fields(self) -> dict[str, SearchStrategy[Any]]:
        # A correction that crosses a page boundary is rare among arbitrary lengths.
        return {**super().fields(), "lens": lengths(3, 13, 19)}

    def allocate(self, device: torch.device) -> Buffers:
        buffers = super().allocate(device)
        rows, width = buffers["page_table_flat"].shape
        return Buffers(
            **dict(buffers.items()),
            padded=torch.zeros(rows, width, dtype=torch.int32, device=device),
            kv_indices=torch.zeros(rows * width + 1, dtype=torch.int32, device=device),
            indptr=torch.zeros(rows + 1, dtype=torch.int32, device=device),
        )

    def stage_lengths(self, buffers: Buffers, case: Case, scene: Scene) -> None:
        super().stage_lengths(buffers, case, scene)
        driver, overlap = self.bench(case).driver, self.bench(case).overlap
        buffers["padded"].copy_(driver.page_table)
        flatten_into(
            buffers["kv_indices"], buffers["indptr"], buffers["padded"], overlap.staged, scene.geometry.page_size
        )

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        bench = self.benches[self.active]
        bench.overlap.correct(bench.driver)
        self.restage(buffers, bench)
        unflatten_into(bench.driver.page_table, buffers["kv_indices"], buffers["indptr"])
        bench.driver.plan()
        return self.layer(bench)

    def restage(self, buffers: Buffers, bench: Bench) -> None:
        """Bring the flat form up to the corrected lengths."""
        driver = bench.driver
        flatten_into(
            buffers["kv_indices"], buffers["indptr"], buffers["padded"], driver.kv_lens, driver.geometry.page_size
        )


class KeepsStagedTable(RestagesBoth):
    """Row pointers follow the corrected lengths, the pages stay packed by the staged ones: later rows are misbased."""

    def restage(self, buffers: Buffers, bench: Bench) -> None:
        pointers_into(buffers["indptr"], bench.driver.kv_lens, bench.driver.geometry.page_size)


class ScoresAtCapacity(Decode):
    """Scores are work space: the step returns pages and attention."""

    kernels = "portable"
    VARIANTS = small_variants(4, bucket=3, pages=6)
    derived = (*Decode.derived, "scores")

    def stage_lengths(self, buffers: Buffers, case: Case, scene: Scene) -> None:
        super().stage_lengths(buffers, case, scene)
        self.reserve(buffers, max(1, scene.geometry.pages(max(scene.kv_lens))))

    def reserve(self, buffers: Buffers, pages: int) -> None:
        """Have scores for that many pages."""

    def layer(self, bench: Bench) -> Mapping[str, torch.Tensor]:
        driver = bench.driver
        driver.write(bench.cache, bench.k, bench.v, bench.index_k)
        table = driver.page_table.narrow(1, 0, driver.scores.shape[2])
        index_cache = bench.caches()["index_cache"]
        proxy_score(driver.scores, bench.index_q, index_cache, table, driver.kv_lens, driver.qo_len)
        driver.select()
        driver.attend_sparse(bench.q, bench.cache)
        return {"page_ids": driver.page_ids, "out": driver.out}

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        return {name: tensor for name, tensor in super().eager(buffers, case).items() if name != "scores"}

    def reference(
        self, before: Mapping[str, torch.Tensor], case: Case, outputs: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        q, caches = before[f"q_{case.variant}"], self.right_caches(before, case)
        ids = outputs["page_ids"]
        return {"out": answer.sparse_out(self.scene(case), caches["k_cache"], caches["v_cache"], q, ids)}


class ScoresAtPlan(ScoresAtCapacity):
    """Scores are sized by the plan at hand, and replaced when a longer batch comes by."""

    def allocate(self, device: torch.device) -> Buffers:
        buffers = super().allocate(device)
        self.replace(buffers, 1)
        return buffers

    def reserve(self, buffers: Buffers, pages: int) -> None:
        if buffers["scores_q4"].shape[2] < pages:
            self.replace(buffers, pages)

    def replace(self, buffers: Buffers, pages: int) -> None:
        """Make a new score buffer of that many pages."""
        driver = self.benches["q4"].driver
        heads, rows, _ = driver.scores.shape
        driver.scores = torch.empty(heads, rows, pages, device=driver.scores.device)
        buffers.scores_q4 = driver.scores


class PadsWithDummySlot(KvWrite):
    """The host stages the slots; padding rows get the slot behind the pool."""

    kernels = "portable"
    VARIANTS = small_variants(4, bucket=3, pages=6)
    derived: ClassVar[tuple[str, ...]] = Decode.derived

    def allocate(self, device: torch.device) -> Buffers:
        buffers = super().allocate(device)
        return Buffers(**dict(buffers.items()), staged_slots=torch.zeros_like(buffers["slots_q4"]))

    def stage_lengths(self, buffers: Buffers, case: Case, scene: Scene) -> None:
        super().stage_lengths(buffers, case, scene)
        slots = answer.slots(scene)
        dummy = scene.geometry.dummy_slot
        buffers["staged_slots"].copy_(slots.masked_fill(slots == dummy, self.padding(dummy)))

    def padding(self, dummy: int) -> int:
        """The slot of rows without a token."""
        return dummy

    def pool(self, cache: torch.Tensor) -> torch.Tensor:
        """The part of a cache that slots index."""
        return cache

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        bench = self.benches[self.active]
        slots, page_size = buffers["staged_slots"], bench.driver.geometry.page_size
        page, offset = slots // page_size, slots % page_size
        rows = (bench.k, bench.v, bench.index_k)
        for cache, row in zip(bench.caches().values(), rows, strict=True):
            self.pool(cache).permute(0, 2, 1, 3).index_put_((page, offset), row)
        return {}

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        super().eager(buffers, case)
        return {}

    def reference(
        self, before: Mapping[str, torch.Tensor], case: Case, outputs: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        right = super().reference(before, case, outputs)
        return {name: tensor for name, tensor in right.items() if name != "slots"}


class PadsWithMinusOne(PadsWithDummySlot):
    """Padding rows get slot -1, which indexing takes for the last slot of the pool."""

    def padding(self, dummy: int) -> int:
        return -1

    def pool(self, cache: torch.Tensor) -> torch.Tensor:
        return cache[:-1]


class CopiesTable(Decode):
    kernels = "portable"
    VARIANTS = small_variants(4, bucket=3, pages=6)


class RebindsTable(CopiesTable):
    """Staging makes a new page table; the graph reads the old one."""

    def stage_lengths(self, buffers: Buffers, case: Case, scene: Scene) -> None:
        driver = self.bench(case).driver
        put_lengths(driver.kv_lens, scene.kv_lens)
        driver.page_table = scene.padded().to(driver.kv_lens.device)
        buffers.page_table_q4 = driver.page_table


ZOO = [
    Entry("GC604", "msa-drifts-in-warmup", DriftsInWarmup, RestoresAfterWarmup, "warm-up runs advance the lengths"),
    Entry("GC312", "msa-keeps-staged-table", KeepsStagedTable, RestagesBoth, "row pointers move and the pages do not"),
    Entry("GC404", "msa-scores-at-plan", ScoresAtPlan, ScoresAtCapacity, "scores are sized by the plan at hand"),
    Entry("GC703", "msa-pads-with-minus-one", PadsWithMinusOne, PadsWithDummySlot, "slot -1 wraps to the last slot"),
    Entry("GC401", "msa-rebinds-table", RebindsTable, CopiesTable, "the page table is bound to a new tensor"),
]
