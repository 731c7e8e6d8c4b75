"""Attention of a target's forward: on a decode driver (captured), or on an eager batch (prefill, mixed batches)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from eagle3.m3.config import TargetConfig
from msa import DecodeDriver, EagerBatch, Geometry, PagedCache


class Attention(Protocol):
    """What a target asks of its attention: the new keys and values are in the cache, and every row has attended."""

    def dense(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attention [T, Hq, D] over everything visible. ``q`` [T, Hq, D], ``k`` and ``v`` [T, Hkv, D], device."""

    def sparse(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        index_q: torch.Tensor,
        index_k: torch.Tensor,
    ) -> torch.Tensor:
        """Attention [T, Hq, D] over the selected pages. ``index_q`` [T, Hkv, D], ``index_k`` [T, 1, D], device."""


@dataclass(frozen=True)
class DriverAttention:
    """A decode or verify step on a driver; the caller has staged and planned it.

    The result is the driver's own output buffer, which the next layer overwrites.

    Args:
        driver: planned for the step.
        caches: one for each layer of the target.
    """

    driver: DecodeDriver
    caches: Sequence[PagedCache]

    def dense(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """As in `Attention`; device only."""
        return self.driver.dense_layer(q, k, v, self.caches[layer])

    def sparse(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        index_q: torch.Tensor,
        index_k: torch.Tensor,
    ) -> torch.Tensor:
        """As in `Attention`; device only."""
        return self.driver.sparse_layer(q, k, v, index_q, index_k, self.caches[layer])


@dataclass(frozen=True)
class EagerAttention:
    """One batch planned on the host, with any number of query tokens per request.

    Args:
        batch: planned from true lengths.
        caches: one for each layer of the target.
    """

    batch: EagerBatch
    caches: Sequence[PagedCache]

    def dense(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """As in `Attention`."""
        return self.batch.dense_layer(q, k, v, self.caches[layer])

    def sparse(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        index_q: torch.Tensor,
        index_k: torch.Tensor,
    ) -> torch.Tensor:
        """As in `Attention`."""
        return self.batch.sparse_layer(q, k, v, index_q, index_k, self.caches[layer])


def allocate_caches(config: TargetConfig, geometry: Geometry, device: torch.device | str) -> list[PagedCache]:
    """One cache with undefined contents for each layer.

    Raises:
        CaptureRefused: the current stream is capturing.
    """
    return [PagedCache.allocate(geometry, device, sparse=config.is_sparse(layer)) for layer in range(config.layers)]
