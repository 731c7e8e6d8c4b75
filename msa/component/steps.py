"""The whole decode step: with planning, corrected under overlap, and at the sizes of MiniMax-M3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from hypothesis.strategies import SearchStrategy

from graphcheck import Buffers, Case, Contents, PageTable, Tolerance, lengths
from graphcheck.cases import Integer, Lengths
from graphcheck.trace import Engine, Step
from msa import answer
from msa.bench import Bench, Variant, as_bytes, m3_variants, small, small_variants
from msa.component.attention import DERIVED, Attention, put_lengths
from msa.geometry import FP8
from msa.scene import Scene

# On the CPU a step reads the whole table, so its capacity is bounded.
TRACE_TOKENS = 4352


class Decode(Attention):
    """A sparse layer's whole step: plan, write, score, select, attend."""

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        bench = self.benches[self.active]
        bench.driver.plan()
        return self.layer(bench)

    def for_trace(self, longest: int) -> Decode:
        """The same step with one variant whose table holds ``longest`` tokens, or `TRACE_TOKENS` if that is less."""
        name, variant = list(self.VARIANTS.items())[-1]
        geometry = variant.geometry
        tokens = min(longest + variant.qo_len, TRACE_TOKENS)
        pages = -(-tokens // geometry.page_size)
        sized = replace(
            geometry, max_pages=pages, num_pages=variant.bucket * pages, max_seq_len=pages * geometry.page_size
        )
        return type(self)({name: replace(variant, geometry=sized)})

    def trace_engine(self) -> Engine:
        """The engine that stages this component's batches."""
        variant = list(self.VARIANTS.values())[-1]
        return Engine(variant.bucket, variant.qo_len, variant.geometry.page_size, variant.geometry.capacity)

    def trace_case(self, step: Step) -> Case:
        """The case of one engine step; contents and placement of pages follow from its number."""
        name, variant = list(self.VARIANTS.items())[-1]
        geometry, bucket = variant.geometry, variant.bucket
        padded = (*step.kv_lens, *[0] * (bucket - len(step.kv_lens)))
        return Case(
            variant=name,
            size=Integer(len(step.kv_lens), 1, bucket),
            lens=Lengths(padded, 0, geometry.capacity),
            table=PageTable("permuted", step.number % 7, bucket, geometry.max_pages, geometry.num_pages),
            x=Contents("normal", step.number % 997),
            kv=Contents("normal", step.number % 13),
        )

    def layer(self, bench: Bench) -> Mapping[str, torch.Tensor]:
        """The step behind the planning."""
        driver = bench.driver
        driver.sparse_layer(bench.q, bench.k, bench.v, bench.index_q, bench.index_k, bench.cache)
        return {"scores": driver.scores, "page_ids": driver.page_ids, "out": driver.out}

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        bench, planned = self.bench(case), self.planned(case)
        driver, rows = bench.driver, slice(0, planned.rows)
        planned.write(bench.cache, bench.k[rows], bench.v[rows], bench.index_k[rows])
        scores = planned.score(bench.index_q[rows], bench.cache)
        page_ids = planned.select(scores)
        return {
            "scores": self.spread(bench, planned, scores),
            "page_ids": self.padded(driver.page_ids, page_ids, -1),
            "out": self.padded(driver.out, planned.attend_sparse(bench.q[rows], bench.cache, page_ids), 0.0),
        }

    def reference(
        self, before: Mapping[str, torch.Tensor], case: Case, outputs: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        scene, caches = self.scene(case), self.right_caches(before, case)
        index_q, q = before[f"index_q_{case.variant}"], before[f"q_{case.variant}"]
        k, v = (caches[f"{name}_cache"].float() * self.scales.get(f"{name}_scale", 1.0) for name in ("k", "v"))
        return {
            "scores": answer.scores(scene, caches["index_cache"], index_q),
            "page_ids": answer.page_ids(scene, outputs["scores"]),
            "out": answer.sparse_out(scene, k, v, q, outputs["page_ids"]),
            **{f"{name}_{case.variant}": as_bytes(tensor) for name, tensor in caches.items()},
        }


class Overlap(Decode):
    """A step staged as if every draft of the previous one were accepted, and corrected inside the graph."""

    VARIANTS = small_variants(2, 4)
    derived = (*DERIVED, "kv_lens")

    def fields(self) -> dict[str, SearchStrategy[Any]]:
        fields = super().fields()
        some = next(iter(self.VARIANTS.values()))
        return {**fields, "accepted": lengths(some.bucket, 1, max(v.qo_len for v in self.VARIANTS.values()))}

    def accepted(self, case: Case) -> list[int]:
        """Tokens that the previous step kept of each real request, 1..Q."""
        kept = case.accepted[: case.size].clamp(max=self.VARIANTS[case.variant].qo_len)
        return [int(count) for count in kept]

    def trace_case(self, step: Step) -> Case:
        bucket = next(iter(self.VARIANTS.values())).bucket
        most = max(variant.qo_len for variant in self.VARIANTS.values())
        kept = (*step.accepted, *[1] * (bucket - len(step.accepted)))
        return super().trace_case(step).replaced(accepted=Lengths(kept, 1, most))

    def true_lengths(self, case: Case) -> list[int]:
        qo_len = self.VARIANTS[case.variant].qo_len
        staged = super().true_lengths(case)
        return [max(length - qo_len + kept, 0) for length, kept in zip(staged, self.accepted(case), strict=True)]

    def stage_lengths(self, buffers: Buffers, case: Case, scene: Scene) -> None:
        bench, optimistic = self.bench(case), super().true_lengths(case)
        buffers[f"page_table_{case.variant}"].copy_(scene.padded(optimistic))
        bench.overlap.stage(optimistic)
        put_lengths(bench.overlap.accepted, tuple(self.accepted(case)))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        bench = self.benches[self.active]
        bench.overlap.correct(bench.driver)
        return self.layer(bench)


class DecodeM3(Decode):
    """The whole step at the sizes of MiniMax-M3, one and four ways tensor parallel."""

    VARIANTS = m3_variants(1, 4)
    tolerance = {
        "scores": Tolerance(ulps=32, absolute=1e-3),
        "out": Tolerance(ulps=1, absolute=2e-4),
    }


class DecodeFp8(Decode):
    """The whole step with keys, values and index keys stored as fp8 e4m3, each with a scale of its own.

    The scales are such that some values saturate.
    """

    VARIANTS = {"fp8": Variant(replace(small(), dtype=torch.bfloat16, kv_dtype=FP8, index_dtype=FP8), 4, 4)}
    scales = {"k_scale": 0.25, "v_scale": 0.0078125, "index_scale": 2.0}


class DecodePdl(Decode):
    """The whole step with programmatic dependent launches: each kernel waits before it reads what the last one wrote.

    Portable operators know no such launches, so it stands for something on a GPU only.
    """

    pdl = True


class DecodeM3Batch8(DecodeM3):
    """The whole step at the sizes of MiniMax-M3, eight requests: what `graphcheck bench` times."""

    VARIANTS = m3_variants(1, bucket=8)
