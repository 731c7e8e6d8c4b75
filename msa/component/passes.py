"""Each pass of the decode driver by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from graphcheck import (
    Buffers,
    Case,
    contents,
)
from msa import answer
from msa.bench import Bench
from msa.component.attention import Attention


class Proxy(Attention):
    """Proxy scores over a cache that already holds the step's tokens."""

    writes = False
    derived = ()

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        bench = self.benches[self.active]
        return {"scores": bench.driver.score(bench.index_q, bench.cache)}

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        bench, planned = self.bench(case), self.planned(case)
        exact = planned.score(bench.index_q[: planned.rows], bench.cache)
        return {"scores": self.spread(bench, planned, exact)}

    def reference(
        self, before: Mapping[str, torch.Tensor], case: Case, outputs: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        index_cache, index_q = before[f"index_cache_{case.variant}"], before[f"index_q_{case.variant}"]
        return {"scores": answer.scores(self.scene(case), index_cache, index_q)}


class Select(Attention):
    """Selection from scores that are given: ties, signed zeros, infinities and NaN among them."""

    writes = False
    kinds = ("ties", "normal", "extremes", "zeros")
    inert = {"table": "ids are logical pages"}

    def fields(self) -> dict[str, SearchStrategy[Any]]:
        fields = super().fields()
        del fields["kv"]
        return {**fields, "odd": st.integers(0, 9)}

    def stage(self, buffers: Buffers, case: Case) -> None:
        for bench in self.benches.values():
            self.clear(bench)
            bench.driver.scores.zero_()
            for tensor in bench.caches().values():
                tensor.zero_()
        self.active = case.variant
        driver, scene = self.bench(case).driver, self.scene(case)
        scores = torch.empty(driver.scores.shape)
        case.x.fill(scores, 0)
        for number, value in enumerate((math.nan, math.inf, -math.inf)):
            scores.view(-1)[case.odd + number :: 11 + case.odd].fill_(value)
        driver.scores.copy_(scores.masked_fill_(~scene.visible_scores(), math.nan))
        self.stage_lengths(buffers, case, scene)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        driver = self.benches[self.active].driver
        driver.plan()
        return {"page_ids": driver.select()}

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        driver, planned = self.bench(case).driver, self.planned(case)
        exact = [driver.scores[:, request.rows, : request.width].contiguous() for request in planned.requests]
        return {"page_ids": self.padded(driver.page_ids, planned.select(exact), -1)}

    def reference(
        self, before: Mapping[str, torch.Tensor], case: Case, outputs: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        return {"page_ids": answer.page_ids(self.scene(case), before[f"scores_{case.variant}"])}


class Sparse(Attention):
    """Attention over pages that are given, in a cache that already holds the step's tokens."""

    writes = False

    def fields(self) -> dict[str, SearchStrategy[Any]]:
        return {**super().fields(), "picks": contents(("normal",))}

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        driver = self.bench(case).driver
        scores = case.picks.tensor(*driver.scores.shape)
        driver.page_ids.copy_(answer.page_ids(self.scene(case), scores))

    def clear(self, bench: Bench) -> None:
        super().clear(bench)
        bench.driver.page_ids.fill_(-1)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        bench = self.benches[self.active]
        bench.driver.plan()
        return {"out": bench.driver.attend_sparse(bench.q, bench.cache)}

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        bench, planned = self.bench(case), self.planned(case)
        rows = slice(0, planned.rows)
        exact = planned.attend_sparse(bench.q[rows], bench.cache, bench.driver.page_ids[rows])
        return {"out": self.padded(bench.driver.out, exact, 0.0)}

    def reference(
        self, before: Mapping[str, torch.Tensor], case: Case, outputs: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        names = ("k_cache", "v_cache", "q", "page_ids")
        return {"out": answer.sparse_out(self.scene(case), *(before[f"{name}_{case.variant}"] for name in names))}


class Dense(Attention):
    """A dense layer's step: write, then attend to everything visible, one KV head at a time."""

    heads_at_once = 1

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        bench = self.benches[self.active]
        bench.driver.plan()
        bench.driver.write(bench.cache, bench.k, bench.v, bench.index_k)
        return {"out": bench.driver.attend_dense(bench.q, bench.cache, heads_at_once=self.heads_at_once)}

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        bench, planned = self.bench(case), self.planned(case)
        rows = slice(0, planned.rows)
        planned.write(bench.cache, bench.k[rows], bench.v[rows], bench.index_k[rows])
        return {"out": self.padded(bench.driver.out, planned.attend_dense(bench.q[rows], bench.cache), 0.0)}

    def reference(
        self, before: Mapping[str, torch.Tensor], case: Case, outputs: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        caches = self.right_caches(before, case)
        out = answer.dense_out(self.scene(case), caches["k_cache"], caches["v_cache"], before[f"q_{case.variant}"])
        return {"out": out, **{f"{name}_{case.variant}": tensor for name, tensor in caches.items()}}


class KvWrite(Attention):
    """The step's keys, values and index keys brought into their slots."""

    derived: ClassVar[tuple[str, ...]] = ("qo_offsets", "extents", "valid_pages")

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        bench = self.benches[self.active]
        bench.driver.plan()
        bench.driver.write(bench.cache, bench.k, bench.v, bench.index_k)
        return {"slots": bench.driver.ladder.slots}

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        bench, planned = self.bench(case), self.planned(case)
        rows = slice(0, planned.rows)
        planned.write(bench.cache, bench.k[rows], bench.v[rows], bench.index_k[rows])
        slots = bench.driver.ladder.slots
        return {"slots": self.padded(slots, planned.slots, bench.driver.geometry.dummy_slot)}

    def reference(
        self, before: Mapping[str, torch.Tensor], case: Case, outputs: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        caches = {f"{name}_{case.variant}": tensor for name, tensor in self.right_caches(before, case).items()}
        return {"slots": answer.slots(self.scene(case)), **caches}

    inert = {"kv": "the step writes beside it and reads none of it"}
