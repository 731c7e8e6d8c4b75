"""What all components of msa share: variants, staging, masks and the pieces of the reference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, ClassVar

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from graphcheck import (
    Buffers,
    Case,
    Component,
    PageTable,
    Tolerance,
    batch,
    case,
    contents,
    lengths,
    page_tables,
)
from msa import answer
from msa.bench import Bench, Variant, small_variants
from msa.eager import EagerBatch
from msa.geometry import FP8
from msa.scene import Scene

CACHES = ("k_cache", "v_cache", "index_cache")
SCALES = ("k_scale", "v_scale", "index_scale")
FRESH = ("k", "v", "index_k")
# Largest difference for values of up to four in bf16, 128 tokens and more: shorter rows are better.
ROUNDED_WEIGHTS = 4e-3
WORKSPACE = ("peaks", "norms", "totals")
DERIVED = ("qo_offsets", "extents", "valid_pages", "slots")
KINDS = ("normal", "ramp", "ties", "zeros")
NOTHING = torch.zeros(1, 1, 1, 1, dtype=torch.bool)


class Attention(Component):
    """What all components of msa share: variants, staging, masks and the pieces of the reference.

    Attributes:
        stored: names of the caches, without the variant.
        writes: the region writes the step's keys and values itself.
        derived: scratch beyond the dummy pages, per variant.
        advanced: state beyond the caches, per variant.
        work: scratch that belongs to no variant.
        kernels: what both arms run on; None for Triton on a real GPU, where nothing is allocated, and for the portable
            operators on the emulator and on the CPU.
        pdl: launch the Triton kernels as programmatic dependents of each other.
        scales: of the caches, by name, where they are fp8.
    """

    VARIANTS: ClassVar[Mapping[str, Variant]] = small_variants(1, 4)
    stored: ClassVar[tuple[str, ...]] = CACHES
    writes: ClassVar[bool] = True
    derived: ClassVar[tuple[str, ...]] = DERIVED
    advanced: ClassVar[tuple[str, ...]] = ()
    work: ClassVar[tuple[str, ...]] = ()
    kinds: ClassVar[tuple[str, ...]] = KINDS
    kernels: ClassVar[str | None] = None
    pdl: ClassVar[bool] = False
    scales: ClassVar[Mapping[str, float]] = {}
    tolerance: Mapping[str, Tolerance] = {
        "scores": Tolerance(ulps=32, absolute=1e-4),
        "out": Tolerance(ulps=4, absolute=2e-4),
    }

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.mutates, cls.scratch = cls.roles(cls.VARIANTS)

    def __init__(self, variants: Mapping[str, Variant] | None = None) -> None:
        """The component at its class's variants, or at others (sized for a trace, for instance)."""
        if variants is not None:
            self.VARIANTS = variants  # type: ignore[misc]
            self.mutates, self.scratch = self.roles(variants)  # type: ignore[misc]

    @classmethod
    def roles(cls, variants: Mapping[str, Variant]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of the state and of the scratch of these variants."""

        def named(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(f"{name}_{variant}" for variant in variants for name in names)

        caches = cls.stored if cls.writes else ()
        spill = tuple(f"spill_{name}" for name in caches)
        return named((*caches, *cls.advanced)), (*named((*cls.derived, *spill)), *cls.work)

    def allocate(self, device: torch.device) -> Buffers:
        self.chosen = kernels_for(device) if self.kernels is None else self.kernels
        self.benches = {name: self.build(variant, device) for name, variant in self.VARIANTS.items()}
        if self.chosen == "triton":
            self.allocation = "none"  # type: ignore[misc]
            workspace = tuple(f"{name}_{variant}" for variant in self.VARIANTS for name in WORKSPACE)
            self.scratch = (*self.scratch, *workspace)  # type: ignore[misc]
            self.tolerance = _coarser(self.tolerance)  # type: ignore[misc]
        self.active = next(iter(self.benches))
        return Buffers(
            **{
                f"{name}_{key}": tensor
                for key, bench in self.benches.items()
                for name, tensor in bench.tensors().items()
            }
        )

    def build(self, variant: Variant, device: torch.device) -> Bench:
        """Driver, caches and inputs of one variant."""
        return Bench(variant, device, self.chosen, self.scales, self.pdl)

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
        return scene_of(self.VARIANTS[case.variant], case.table, tuple(self.true_lengths(case)))

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
            case.x.fill(tensor, part)
            tensor[scene.real_rows :].fill_(math.nan)
        dead = ~scene.alive(history_only=self.writes).to(bench.q.device)
        for part, (_, tensor) in enumerate(sorted(bench.caches().items())):
            case.kv.fill(tensor, 10 + part)
            bury(tensor, dead)
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
        regions: dict[str, Any] = dict.fromkeys(self.mutates, NOTHING)
        if self.writes:
            fresh = scene.fresh().to(buffers[f"q_{case.variant}"].device)
            regions.update({f"{name}_{case.variant}": fresh for name in self.stored})
        regions["scores"] = scene.visible_scores()
        return regions

    def planned(self, case: Case) -> EagerBatch:
        """The case's batch, planned on the host."""
        scene, bench = self.scene(case), self.bench(case)
        device = bench.q.device
        qo_lens = [scene.qo_len] * len(scene.kv_lens)
        return EagerBatch(scene.geometry, qo_lens, scene.kv_lens, scene.flat(device), device, kernels=self.chosen)

    def spread(self, bench: Bench, planned: EagerBatch, scores: list[torch.Tensor]) -> torch.Tensor:
        """The scores of each request brought into the bucket's buffer; columns behind its pages keep what they hold."""
        for request, mine in zip(planned.requests, scores, strict=True):
            target = bench.driver.scores[:, request.rows, : request.width]
            columns = torch.arange(request.width, device=target.device)
            target.copy_(torch.where(columns < request.valid_pages.unsqueeze(1), mine, target))
        return bench.driver.scores

    def padded(self, output: torch.Tensor, exact: torch.Tensor, neutral: float) -> torch.Tensor:
        """``exact`` brought into the leading rows of ``output``, and the neutral value behind it."""
        output[: exact.shape[0]].copy_(exact)
        output[exact.shape[0] :].fill_(neutral)
        return output

    def right_caches(self, before: Mapping[str, torch.Tensor], case: Case) -> dict[str, torch.Tensor]:
        """The caches once the step's tokens are written, by name without the variant."""
        caches = {name: before[f"{name}_{case.variant}"] for name in CACHES}
        # Buffers show fp8 as bytes.
        caches = {name: cache.view(FP8) if cache.dtype is torch.uint8 else cache for name, cache in caches.items()}
        fresh = {name: before[f"{part}_{case.variant}"] for name, part in zip(CACHES, FRESH, strict=True)}
        scales = dict(zip(CACHES, (self.scales.get(name, 1.0) for name in SCALES), strict=True))
        return answer.caches_after(self.scene(case), caches, fresh, scales)


def bury(cache: torch.Tensor, dead: torch.Tensor) -> None:
    """Slots of ``cache`` [pages, heads, P, D] that are ``dead`` (bool, broadcastable) hold NaN; in place."""
    if cache.dtype is FP8:
        # There is no masked fill of fp8; this is its NaN.
        cache.view(torch.uint8).masked_fill_(dead, 0x7F)
    else:
        cache.masked_fill_(dead, math.nan)


def kernels_for(device: torch.device) -> str:
    """What a component runs on there: "triton" on a real GPU of at least Hopper's kind with triton installed."""
    # The emulator's tensors are of a class of their own.
    real = device.type == "cuda" and type(torch.empty(0, device=device)) is torch.Tensor
    if not real or torch.cuda.get_device_capability(device) < (9, 0) or find_spec("triton") is None:
        return "portable"
    return "triton"


def _coarser(tolerance: Mapping[str, Tolerance]) -> dict[str, Tolerance]:
    """What the kernels are held to: they round weights to the dtype of the cache before these meet the values."""
    return {
        name: replace(given, absolute=max(given.absolute, ROUNDED_WEIGHTS)) if name in ("out", "outs") else given
        for name, given in tolerance.items()
    }


@lru_cache(maxsize=8)
def scene_of(variant: Variant, table: PageTable, kv_lens: tuple[int, ...]) -> Scene:
    """The batch with these lengths on a drawn page table; kept, since every member of the contract asks for it."""
    drawn = table.tensor()
    shared = 0
    if table.kind == "shared":
        shared = int((drawn == drawn[:1]).all(0).sum())
        drawn = PageTable("permuted", table.seed, table.rows, table.width, table.pages).tensor()
    return Scene.build(variant.geometry, variant.bucket, variant.qo_len, list(kv_lens), drawn.tolist(), shared)


def put_lengths(target: torch.Tensor, values: tuple[int, ...]) -> None:
    """Leading entries of ``target`` [B] int32 hold ``values``, and zero behind them."""
    padded = torch.zeros(target.shape, dtype=torch.int32)
    padded[: len(values)] = torch.tensor(values, dtype=torch.int32)
    target.copy_(padded)
