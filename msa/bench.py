"""A bench: driver, cache and inputs of one variant, which is what one captured graph is made for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from msa.cache import PagedCache
from msa.driver import DecodeDriver
from msa.geometry import FP8, Geometry
from msa.overlap import OverlapLengths


@dataclass(frozen=True)
class Variant:
    """One graph key: a geometry and a number of query tokens, with a bucket of requests."""

    geometry: Geometry
    qo_len: int
    bucket: int

    @property
    def rows(self) -> int:
        """Query rows of the bucket."""
        return self.bucket * self.qo_len


def small(bucket: int = 4, pages: int = 10) -> Geometry:
    """A small geometry with the proportions of M3: heads 8/2/2, D 32, pages of 16 tokens, top-k 4."""
    return Geometry(
        q_heads=8,
        kv_heads=2,
        index_heads=2,
        head_dim=32,
        page_size=16,
        top_k=4,
        max_batch=bucket,
        max_pages=pages,
        num_pages=bucket * pages,
        max_seq_len=pages * 16 - 20,
        dtype=torch.float32,
    )


def small_variants(*qo_lens: int, bucket: int = 4, pages: int = 10) -> dict[str, Variant]:
    """Variants of the small geometry by name, ``bucket`` requests of up to ``pages`` pages each."""
    return {f"q{qo_len}": Variant(small(bucket, pages), qo_len, bucket) for qo_len in qo_lens}


def m3_variants(*parallel: int, bucket: int = 2) -> dict[str, Variant]:
    """Variants at the sizes of MiniMax-M3 by ways of tensor parallelism, ``bucket`` requests of 20 pages, Q 4."""
    return {
        f"tp{ways}": Variant(
            Geometry.m3(ways, max_batch=bucket, max_pages=20, num_pages=20 * bucket, max_seq_len=2500), 4, bucket
        )
        for ways in parallel
    }


def as_bytes(cache: torch.Tensor) -> torch.Tensor:
    """The cache, viewed as bytes if it is fp8: comparing and masking need no more, and few operators take fp8."""
    return cache.view(torch.uint8) if cache.dtype is FP8 else cache


class Bench:
    """Driver, cache and inputs of one variant.

    Args:
        variant: sizes.
        device: where everything lives.
        kernels: of the driver, which with "triton" is prepared here.
        scales: of the cache, by name, where it is fp8.
        pdl: programmatic dependent launches, with "triton".

    Attributes:
        q: [T, Hq, D], k, v: [T, Hkv, D], index_q: [T, Hidx, D], index_k: [T, 1, D]; dtype, device.
    """

    def __init__(
        self,
        variant: Variant,
        device: torch.device,
        kernels: str = "portable",
        scales: Mapping[str, float] | None = None,
        pdl: bool = False,
    ) -> None:
        geometry, rows = variant.geometry, variant.rows
        self.variant = variant
        self.driver = DecodeDriver(geometry, variant.bucket, variant.qo_len, device, kernels=kernels, pdl=pdl)
        self.cache = PagedCache.allocate(geometry, device, **(scales or {}))

        def new(heads: int) -> torch.Tensor:
            return torch.empty(rows, heads, geometry.head_dim, dtype=geometry.dtype, device=device)

        self.q = new(geometry.q_heads)
        self.k, self.v = new(geometry.kv_heads), new(geometry.kv_heads)
        self.index_q, self.index_k = new(geometry.index_heads), new(1)
        self.overlap = OverlapLengths(variant.bucket, variant.qo_len, device)
        self.driver.prepare(self.q, self.k, self.v, self.index_q, self.index_k, self.cache)

    def caches(self) -> dict[str, torch.Tensor]:
        """The caches by buffer name."""
        index_k = self.cache.index_k
        return {"k_cache": self.cache.k, "v_cache": self.cache.v} | (
            {} if index_k is None else {"index_cache": index_k}
        )

    def inputs(self) -> dict[str, torch.Tensor]:
        """The float inputs by buffer name."""
        return {"q": self.q, "k": self.k, "v": self.v, "index_q": self.index_q, "index_k": self.index_k}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything by buffer name; ``spill_*`` is the dummy page of each cache. fp8 caches come as bytes."""
        stored = {name: as_bytes(tensor) for name, tensor in self.caches().items()}
        spill = {f"spill_{name}": tensor[-1:] for name, tensor in stored.items()}
        lengths = {"staged": self.overlap.staged, "accepted": self.overlap.accepted}
        return {**stored, **spill, **self.inputs(), **self.driver.tensors(), **lengths}
