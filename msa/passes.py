"""The passes of a step, as driver and eager API call them: the portable operators with what a cache says of itself."""

from __future__ import annotations

from typing import Protocol

import torch

from msa.cache import PagedCache
from msa.errors import ShapeMismatch
from msa.geometry import Geometry
from msa.ladder import Ladder
from msa.ops import dense_attention, kv_write, proxy_score, select_pages, sparse_gqa


class Passes(Protocol):
    """What a set of kernels offers. Shapes as in `msa.ops`; ``cache`` brings its tensors and their scales."""

    def plan_ladder(self, ladder: Ladder, kv_lens: torch.Tensor, page_table: torch.Tensor) -> None:
        """The ladder's fields are those of a batch with these lengths."""

    def write(
        self,
        cache: PagedCache,
        k: torch.Tensor,
        v: torch.Tensor,
        index_k: torch.Tensor | None,
        slots: torch.Tensor,
    ) -> None:
        """The rows' keys, values and index keys stand in their slots."""

    def score(
        self,
        scores: torch.Tensor,
        index_q: torch.Tensor,
        cache: PagedCache,
        page_table: torch.Tensor,
        kv_lens: torch.Tensor,
        qo_len: int,
    ) -> None:
        """``scores`` holds the proxy scores of the rows."""

    def select(self, page_ids: torch.Tensor, scores: torch.Tensor, valid_pages: torch.Tensor) -> None:
        """``page_ids`` holds the selected pages of the rows."""

    def attend_sparse(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        cache: PagedCache,
        page_ids: torch.Tensor,
        page_table: torch.Tensor,
        row_requests: torch.Tensor,
        kv_lens: torch.Tensor,
        qo_offsets: torch.Tensor,
    ) -> None:
        """``out`` holds the attention of the rows over ``page_ids``."""

    def attend_dense(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        cache: PagedCache,
        page_table: torch.Tensor,
        kv_lens: torch.Tensor,
        qo_len: int,
        heads_at_once: int = 1,
    ) -> None:
        """``out`` holds the attention of the rows over everything visible."""


class PortablePasses:
    """The passes as torch operators, on any device.

    Args:
        geometry: sizes.
    """

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry

    def plan_ladder(self, ladder: Ladder, kv_lens: torch.Tensor, page_table: torch.Tensor) -> None:
        """`msa.ladder.plan_ladder`."""
        ladder.plan(kv_lens, page_table)

    def write(
        self,
        cache: PagedCache,
        k: torch.Tensor,
        v: torch.Tensor,
        index_k: torch.Tensor | None,
        slots: torch.Tensor,
    ) -> None:
        """`msa.ops.kv_write`, once for each cache."""
        kv_write(cache.k, k, slots, cache.k_scale)
        kv_write(cache.v, v, slots, cache.v_scale)
        if index_k is not None and cache.index_k is not None:
            kv_write(cache.index_k, index_k, slots, cache.index_scale)

    def score(
        self,
        scores: torch.Tensor,
        index_q: torch.Tensor,
        cache: PagedCache,
        page_table: torch.Tensor,
        kv_lens: torch.Tensor,
        qo_len: int,
    ) -> None:
        """`msa.ops.proxy_score`."""
        proxy_score(scores, index_q, index_keys(cache), page_table, kv_lens, qo_len)

    def select(self, page_ids: torch.Tensor, scores: torch.Tensor, valid_pages: torch.Tensor) -> None:
        """`msa.ops.select_pages`."""
        select_pages(page_ids, scores, valid_pages, self.geometry.init_pages, self.geometry.local_pages)

    def attend_sparse(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        cache: PagedCache,
        page_ids: torch.Tensor,
        page_table: torch.Tensor,
        row_requests: torch.Tensor,
        kv_lens: torch.Tensor,
        qo_offsets: torch.Tensor,
    ) -> None:
        """`msa.ops.sparse_gqa`."""
        scale = self.geometry.scale * cache.k_scale
        where = (page_ids, page_table, row_requests, kv_lens, qo_offsets)
        sparse_gqa(out, q, cache.k, cache.v, *where, scale, cache.v_scale)

    def attend_dense(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        cache: PagedCache,
        page_table: torch.Tensor,
        kv_lens: torch.Tensor,
        qo_len: int,
        heads_at_once: int = 1,
    ) -> None:
        """`msa.ops.dense_attention`."""
        scale = self.geometry.scale * cache.k_scale
        dense_attention(out, q, cache.k, cache.v, page_table, kv_lens, qo_len, scale, heads_at_once, cache.v_scale)


def index_keys(cache: PagedCache) -> torch.Tensor:
    """The index keys of a sparse layer's cache.

    Raises:
        ShapeMismatch: the cache is a dense layer's.
    """
    if cache.index_k is None:
        raise ShapeMismatch("this cache has no index keys; allocate it with sparse=True")
    return cache.index_k
