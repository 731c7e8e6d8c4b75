"""The passes of the decode driver, and the whole step, as components that graphcheck verifies.

Each is captured through the driver and compared with the eager API, which plans on the host from true lengths, for the
real requests only. Everything that no request owns is poisoned: stale slots, unused pages, the rows behind the batch
with NaN, unused table entries with ids outside the pool.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from graphcheck import (
    Buffers,
    Case,
    Component,
    Contents,
    PageTable,
    Tolerance,
    batch,
    case,
    contents,
    lengths,
    page_tables,
)
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from msa import answer
from msa.bench import Bench, Variant, m3_variants, small_variants
from msa.eager import EagerBatch
from msa.scene import Scene

_PERIOD = 61_091
_CACHES = ("k_cache", "v_cache", "index_cache")
_FRESH = ("k", "v", "index_k")
_DERIVED = ("qo_offsets", "extents", "valid_pages", "slots")
_KINDS = ("normal", "ramp", "ties", "zeros")
_NOTHING = torch.zeros(1, 1, 1, 1, dtype=torch.bool)


class Attention(Component):
    """What all components of msa share: variants, staging, masks and the pieces of the reference.

    Attributes:
        writes: the region writes the step's keys and values itself.
        derived: scratch beyond the dummy pages, per variant.
    """

    VARIANTS: ClassVar[Mapping[str, Variant]] = small_variants(1, 4)
    writes: ClassVar[bool] = True
    derived: ClassVar[tuple[str, ...]] = _DERIVED
    kinds: ClassVar[tuple[str, ...]] = _KINDS
    tolerance = {
        "scores": Tolerance(ulps=32, absolute=1e-4),
        "out": Tolerance(ulps=4, absolute=2e-4),
    }

    def __init__(self) -> None:
        spill = tuple(f"spill_{name}" for name in _CACHES)
        self.mutates = self._named(_CACHES if self.writes else ())
        self.scratch = self._named((*self.derived, *spill) if self.writes else self.derived)

    def _named(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{name}_{variant}" for variant in self.VARIANTS for name in names)

    def allocate(self, device: torch.device) -> Buffers:
        self.benches = {name: Bench(variant, device) for name, variant in self.VARIANTS.items()}
        self.active = next(iter(self.benches))
        return Buffers(
            **{
                f"{name}_{key}": tensor
                for key, bench in self.benches.items()
                for name, tensor in bench.tensors().items()
            }
        )

    def cases(self) -> SearchStrategy[Case]:
        return case(**self.fields())

    def fields(self) -> dict[str, SearchStrategy[Any]]:
        """The strategies of the case's fields."""
        some = next(iter(self.VARIANTS.values()))
        geometry, bucket = some.geometry, some.bucket
        qo_len = max(variant.qo_len for variant in self.VARIANTS.values())
        return {
            "variant": st.sampled_from(sorted(self.VARIANTS)),
            "size": batch(bucket),
            "lens": lengths(bucket, 0, geometry.capacity, page=geometry.page_size, qo_len=qo_len),
            "table": page_tables(bucket, geometry.max_pages, geometry.num_pages),
            "x": contents(self.kinds),
            "kv": contents(self.kinds),
        }

    def key(self, case: Case) -> str:
        return str(case.variant)

    def scene(self, case: Case) -> Scene:
        """The true batch of a case."""
        variant = self.VARIANTS[case.variant]
        table: PageTable = case.table
        drawn = table.tensor()
        shared = 0
        if table.kind == "shared":
            shared = int((drawn == drawn[:1]).all(0).sum())
            drawn = PageTable("permuted", table.seed, table.rows, table.width, table.pages).tensor()
        kv_lens = self.true_lengths(case)
        return Scene.build(variant.geometry, variant.bucket, variant.qo_len, kv_lens, drawn.tolist(), shared)

    def true_lengths(self, case: Case) -> list[int]:
        """Length of each real request at this step, tokens."""
        return [int(length) for length in case.lens[: case.size]]

    def bench(self, case: Case) -> Bench:
        """The tensors of the case's variant."""
        return self.benches[case.variant]

    def stage(self, buffers: Buffers, case: Case) -> None:
        scene = self.scene(case)
        for name, bench in self.benches.items():
            if name != case.variant:
                self.clear(bench)
        self.active = case.variant
        bench = self.bench(case)
        for part, (_, tensor) in enumerate(sorted(bench.inputs().items())):
            fill(case.x, tensor, part)
            tensor[scene.real_rows :].fill_(math.nan)
        dead = ~scene.alive(history_only=self.writes)
        for part, (_, tensor) in enumerate(sorted(bench.caches().items())):
            fill(case.kv, tensor, 10 + part)
            tensor.masked_fill_(dead.to(tensor.device), math.nan)
        self.stage_lengths(buffers, case, scene)

    def stage_lengths(self, buffers: Buffers, case: Case, scene: Scene) -> None:
        """Bring lengths and page table into the driver's inputs."""
        driver = self.bench(case).driver
        put_lengths(driver.kv_lens, scene.kv_lens)
        buffers[f"page_table_{case.variant}"].copy_(scene.padded())

    def clear(self, bench: Bench) -> None:
        """Leave nothing of an earlier case in the inputs of a variant that this case does not use."""
        for tensor in (*bench.inputs().values(), bench.overlap.staged, bench.overlap.accepted):
            tensor.zero_()
        bench.driver.kv_lens.zero_()
        bench.driver.page_table.fill_(-1)

    def written(self, buffers: Buffers, case: Case) -> Mapping[str, Any]:
        scene = self.scene(case)
        regions: dict[str, Any] = {name: _NOTHING for name in self.mutates}
        if self.writes:
            regions.update({f"{name}_{case.variant}": scene.fresh() for name in _CACHES})
        regions["scores"] = scene.visible_scores()
        return regions

    def planned(self, case: Case) -> EagerBatch:
        """The case's batch, planned on the host."""
        scene, bench = self.scene(case), self.bench(case)
        device = bench.q.device
        return EagerBatch(
            scene.geometry, [scene.qo_len] * len(scene.kv_lens), scene.kv_lens, scene.flat(device), device
        )

    def spread(self, bench: Bench, planned: EagerBatch, scores: list[torch.Tensor]) -> torch.Tensor:
        """The scores of each request brought into the bucket's buffer; columns behind its pages keep what they hold."""
        for request, mine in zip(planned.requests, scores, strict=True):
            target = bench.driver.scores[:, request.rows, : request.width]
            target.copy_(torch.where(mine == -math.inf, target, mine))
        return bench.driver.scores

    def padded(self, output: torch.Tensor, exact: torch.Tensor, neutral: float) -> torch.Tensor:
        """``exact`` brought into the leading rows of ``output``, and the neutral value behind it."""
        output[: exact.shape[0]].copy_(exact)
        output[exact.shape[0] :].fill_(neutral)
        return output

    def right_caches(self, before: Mapping[str, torch.Tensor], case: Case) -> dict[str, torch.Tensor]:
        """The caches once the step's tokens are written, by name without the variant."""
        caches = {name: before[f"{name}_{case.variant}"] for name in _CACHES}
        fresh = {name: before[f"{part}_{case.variant}"] for name, part in zip(_CACHES, _FRESH, strict=True)}
        return answer.caches_after(self.scene(case), caches, fresh)


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
        fill(case.x, scores, 0)
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

    derived = ("qo_offsets", "extents", "valid_pages")

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


class Decode(Attention):
    """A sparse layer's whole step: plan, write, score, select, attend."""

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        bench = self.benches[self.active]
        bench.driver.plan()
        return self.layer(bench)

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
        return {
            "scores": answer.scores(scene, caches["index_cache"], index_q),
            "page_ids": answer.page_ids(scene, outputs["scores"]),
            "out": answer.sparse_out(scene, caches["k_cache"], caches["v_cache"], q, outputs["page_ids"]),
            **{f"{name}_{case.variant}": tensor for name, tensor in caches.items()},
        }


class Overlap(Decode):
    """A step staged as if every draft of the previous one were accepted, and corrected inside the graph."""

    VARIANTS = small_variants(2, 4)
    derived = (*_DERIVED, "kv_lens")

    def fields(self) -> dict[str, SearchStrategy[Any]]:
        fields = super().fields()
        some = next(iter(self.VARIANTS.values()))
        return {**fields, "accepted": lengths(some.bucket, 1, max(v.qo_len for v in self.VARIANTS.values()))}

    def accepted(self, case: Case) -> list[int]:
        """Tokens that the previous step kept of each real request, 1..Q."""
        kept = case.accepted[: case.size].clamp(max=self.VARIANTS[case.variant].qo_len)
        return [int(count) for count in kept]

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

    VARIANTS = m3_variants()
    tolerance = {
        "scores": Tolerance(ulps=32, absolute=1e-3),
        "out": Tolerance(ulps=1, absolute=2e-4),
    }


COMPONENTS: dict[str, type[Component]] = {
    "proxy": Proxy,
    "select": Select,
    "sparse": Sparse,
    "dense": Dense,
    "kv_write": KvWrite,
    "decode": Decode,
    "overlap": Overlap,
    "decode.m3": DecodeM3,
}


def fill(values: Contents, tensor: torch.Tensor, part: int) -> None:
    """Fill ``tensor`` with contents tiled at a prime period; ``part`` tells tensors of one case apart."""
    period = values.tensor(_PERIOD, dtype=tensor.dtype, part=part)
    repeated = period.repeat(-(-tensor.numel() // _PERIOD))[: tensor.numel()]
    tensor.copy_(repeated.view(tensor.shape))


def put_lengths(target: torch.Tensor, values: tuple[int, ...]) -> None:
    """Leading entries of ``target`` [B] int32 hold ``values``, and zero behind them."""
    padded = torch.zeros(target.shape, dtype=torch.int32)
    padded[: len(values)] = torch.tensor(values, dtype=torch.int32)
    target.copy_(padded)
