"""What the host knew at capture: extents, the moment of building, transient memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from hypothesis.strategies import SearchStrategy

from graphcheck import Buffers, Case, integers
from graphcheck.zoo import Entry
from msa.bench import Variant, small_variants
from msa.component.passes import Dense, Select
from msa.component.steps import Decode
from msa.driver import DecodeDriver
from msa.geometry import Geometry
from msa.ops import dense_attention
from msa.scene import Scene


class DenseToCapacity(Dense):
    kernels = "portable"
    VARIANTS = small_variants(4, bucket=3, pages=6)


class DenseToLongest(DenseToCapacity):
    """The dense pass gathers as many pages as the batch at hand needs: later, longer rows lose their tails."""

    longest = 2

    def stage_lengths(self, buffers: Buffers, case: Case, scene: Scene) -> None:
        super().stage_lengths(buffers, case, scene)
        # At least two: a single page would take other operations, which is a frozen branch and not a frozen width.
        self.longest = max(2, scene.geometry.pages(max(scene.kv_lens)))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        bench = self.benches[self.active]
        driver, geometry = bench.driver, bench.driver.geometry
        driver.plan()
        driver.write(bench.cache, bench.k, bench.v, bench.index_k)
        table = driver.page_table.narrow(1, 0, self.longest)
        dense_attention(
            driver.out, bench.q, bench.cache.k, bench.cache.v, table, driver.kv_lens, driver.qo_len, geometry.scale
        )
        return {"out": driver.out}


class CountsPerRow(Select):
    """Selection for a batch of equal lengths."""

    kernels = "portable"
    VARIANTS = small_variants(1)

    def fields(self) -> dict[str, SearchStrategy[Any]]:
        fields = {name: strategy for name, strategy in super().fields().items() if name not in ("lens", "size")}
        return {**fields, "length": integers(1, next(iter(self.VARIANTS.values())).geometry.capacity)}

    def true_lengths(self, case: Case) -> list[int]:
        return [int(case.length)] * self.VARIANTS[case.variant].bucket


class CountsOnce(CountsPerRow):
    """One number of valid pages for the batch, known to the host: right as long as the graph's own batch comes back."""

    pages = 1

    def stage_lengths(self, buffers: Buffers, case: Case, scene: Scene) -> None:
        super().stage_lengths(buffers, case, scene)
        self.pages = scene.geometry.pages(max(scene.kv_lens))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        driver = self.benches[self.active].driver
        driver.plan()
        count = torch.ones(self.pages, dtype=torch.int32, device=driver.scores.device).sum(dtype=torch.int32)
        driver.ladder.valid_pages.copy_(count.expand(driver.ladder.valid_pages.shape))
        return {"page_ids": driver.select()}


class BuildsAhead(Decode):
    """The driver of the step is built at prepare time."""

    kernels = "portable"
    VARIANTS = small_variants(4, bucket=3, pages=6)
    warmup = 0

    def allocate(self, device: torch.device) -> Buffers:
        self.states: dict[str, DecodeDriver] = {}
        buffers = super().allocate(device)
        self.prepare()
        return buffers

    def prepare(self) -> None:
        """Build what can be built."""
        for name, bench in self.benches.items():
            self.states[name] = bench.driver

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        bench = self.benches[self.active]
        driver = self.states.get(self.active)
        if driver is None:
            ready = bench.driver
            driver = DecodeDriver(
                ready.geometry,
                ready.batch,
                ready.qo_len,
                ready.out.device,
                kv_lens=ready.kv_lens,
                page_table=ready.page_table,
            )
            self.states[self.active] = driver
        driver.plan()
        driver.sparse_layer(bench.q, bench.k, bench.v, bench.index_q, bench.index_k, bench.cache)
        return {"scores": driver.scores, "page_ids": driver.page_ids, "out": driver.out}


class BuildsOnFirstUse(BuildsAhead):
    """The driver of the step is built by the first call, which is the capture where nobody warms up."""

    def prepare(self) -> None:
        self.states.clear()


class ExpandsOneHead(Dense):
    """Four KV heads, expanded one after the other, within a budget for one."""

    kernels = "portable"
    VARIANTS = {
        "h4": Variant(
            Geometry(
                q_heads=8,
                kv_heads=4,
                index_heads=4,
                head_dim=32,
                page_size=16,
                top_k=4,
                max_batch=3,
                max_pages=10,
                num_pages=30,
                max_seq_len=150,
                dtype=torch.float32,
            ),
            2,
            3,
        )
    }
    allocation = 1_200_000


class ExpandsAllHeads(ExpandsOneHead):
    """All KV heads are expanded at one time: the same bits, several times the transient memory."""

    heads_at_once = 4


ZOO = [
    Entry("GC302", "msa-dense-to-longest", DenseToLongest, DenseToCapacity, "dense width is the capture's longest row"),
    Entry("GC302", "msa-counts-once", CountsOnce, CountsPerRow, "one number of valid pages stands for every row"),
    Entry("GC405", "msa-builds-on-first-use", BuildsOnFirstUse, BuildsAhead, "the driver is built inside the capture"),
    Entry("GC505", "msa-expands-all-heads", ExpandsAllHeads, ExpandsOneHead, "all KV heads are expanded at one time"),
]
