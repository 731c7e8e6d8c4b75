"""The kernels as a driver calls them: with their workspace, and refused inside a capture until they are compiled."""

from __future__ import annotations

from typing import Any

import torch

from graphcheck.contract import refuse_while_capturing
from msa.cache import PagedCache
from msa.errors import GeometryError
from msa.geometry import Geometry
from msa.ladder import Ladder
from msa.ops import triton as kernels
from msa.ops.triton.dense_attention import dense_parts
from msa.ops.triton.partials import Partials
from msa.ops.triton.sparse_gqa import sparse_parts
from msa.passes import index_keys

# Tokens of a page of two bytes or one at least, as many as an instruction of a product takes, and numbers of a head in a page
# at most: three pages of keys and values have to fit into shared memory.
LEAST_PAGE = 16
LARGEST_PAGE = 128 * 128


class TritonPasses:
    """The passes of one driver.

    A variant of a kernel follows from the driver's sizes, which are frozen, and from the dtypes of the buffers. The
    first call with new dtypes compiles; inside a capture it is refused instead.

    Args:
        geometry: sizes.
        rows: T.
        device: where the workspace lives.
        partials: a workspace to share with the drivers of other buckets, for at least as many rows; allocated here if
            left out.
        pdl: launch every kernel as a programmatic dependent of the one before.

    Raises:
        CaptureRefused: the current stream is capturing.
        CapacityExceeded: the shared workspace is too small.
        GeometryError: the kernels take no pages of this size.
    """

    def __init__(
        self,
        geometry: Geometry,
        rows: int,
        device: torch.device | str,
        *,
        partials: Partials | None = None,
        pdl: bool = False,
    ) -> None:
        refuse_while_capturing("Triton passes")
        tokens, dtype = geometry.page_size, geometry.stored_kv
        if tokens * geometry.head_dim > LARGEST_PAGE or (tokens < LEAST_PAGE and dtype.itemsize < 4):
            raise GeometryError(
                f"the Triton kernels take pages of {LEAST_PAGE} tokens (8 of fp32) to {LARGEST_PAGE} numbers a head, got "
                f"{tokens} tokens of {geometry.head_dim} numbers, {dtype}; change page_size, or take kernels='portable'"
            )
        parts = max(dense_parts(), sparse_parts(1, geometry.top_k))
        if partials is None:
            partials = Partials(rows, geometry.q_heads, parts, geometry.head_dim, device)
        partials.cut(rows, parts)
        self.geometry = geometry
        self.partials = partials
        self.pdl = pdl
        self._compiled: set[tuple[object, ...]] = set()

    def plan_ladder(self, ladder: Ladder, kv_lens: torch.Tensor, page_table: torch.Tensor) -> None:
        """`msa.ops.triton.plan_ladder`; one launch."""
        fields = (ladder.qo_offsets, ladder.extents, ladder.valid_pages, ladder.slots)
        given = (kv_lens, page_table, ladder.row_requests, ladder.steps, *fields)
        self._admit("plan_ladder", given)
        kernels.plan_ladder(*given, self.geometry, pdl=self.pdl)

    def correct_and_plan(
        self,
        ladder: Ladder,
        kv_lens: torch.Tensor,
        page_table: torch.Tensor,
        staged: torch.Tensor,
        accepted: torch.Tensor,
    ) -> None:
        """`msa.ops.triton.correct_and_plan`; one launch."""
        fields = (ladder.qo_offsets, ladder.extents, ladder.valid_pages, ladder.slots)
        given = (kv_lens, staged, accepted, page_table, *fields)
        self._admit("correct_and_plan", given)
        kernels.correct_and_plan(*given, self.geometry, pdl=self.pdl)

    def write(
        self,
        cache: PagedCache,
        k: torch.Tensor,
        v: torch.Tensor,
        index_k: torch.Tensor | None,
        slots: torch.Tensor,
    ) -> None:
        """`msa.ops.triton.kv_write_layer`; one launch."""
        given = (cache.k, cache.v, cache.index_k, k, v, index_k, slots)
        self._admit("kv_write_layer", given)
        scales = {"k_scale": cache.k_scale, "v_scale": cache.v_scale, "index_scale": cache.index_scale}
        kernels.kv_write_layer(*given, **scales, pdl=self.pdl)

    def score(
        self,
        scores: torch.Tensor,
        index_q: torch.Tensor,
        cache: PagedCache,
        page_table: torch.Tensor,
        kv_lens: torch.Tensor,
        qo_len: int,
    ) -> None:
        """`msa.ops.triton.proxy_score`; one launch."""
        given = (scores, index_q, index_keys(cache), page_table, kv_lens)
        self._admit("proxy_score", given, qo_len)
        kernels.proxy_score(*given, qo_len, pdl=self.pdl)

    def select(self, page_ids: torch.Tensor, scores: torch.Tensor, valid_pages: torch.Tensor) -> None:
        """`msa.ops.triton.select_pages`; one launch."""
        given = (page_ids, scores, valid_pages)
        self._admit("select_pages", given)
        kernels.select_pages(*given, self.geometry.init_pages, self.geometry.local_pages, pdl=self.pdl)

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
        """`msa.ops.triton.sparse_gqa`; one launch, or two."""
        given = (out, q, cache.k, cache.v, page_ids, page_table, row_requests, kv_lens, qo_offsets)
        self._admit("sparse_gqa", given, page_ids.shape[0] // page_table.shape[0])
        kernels.sparse_gqa(*given, self.geometry.scale, **self._attention(cache))

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
        """`msa.ops.triton.dense_attention`; two launches. Nothing is expanded, so ``heads_at_once`` says nothing."""
        given = (out, q, cache.k, cache.v, page_table, kv_lens)
        self._admit("dense_attention", given, qo_len)
        kernels.dense_attention(*given, qo_len, self.geometry.scale, **self._attention(cache))

    def _attention(self, cache: PagedCache) -> dict[str, Any]:
        return {"partials": self.partials, "k_scale": cache.k_scale, "v_scale": cache.v_scale, "pdl": self.pdl}

    def _admit(self, name: str, given: tuple[torch.Tensor | None, ...], qo_len: int = 0) -> None:
        """Pass if this variant is compiled or may be: only a call outside a capture may."""
        dtypes = tuple(None if tensor is None else tensor.dtype for tensor in given)
        variant = (name, qo_len, *dtypes)
        if variant not in self._compiled:
            named = ", ".join(str(dtype) for dtype in dtypes if dtype is not None)
            refuse_while_capturing(f"Triton kernel {name} for ({named}); call prepare() with these buffers first: it")
            self._compiled.add(variant)
