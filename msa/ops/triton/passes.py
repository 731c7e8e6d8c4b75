"""The kernels as a driver calls them: with their workspace, and refused inside a capture until they are compiled."""

from __future__ import annotations

from typing import Any

import torch

from graphcheck.contract import refuse_while_capturing
from msa.geometry import Geometry
from msa.ladder import Ladder
from msa.ops import triton as kernels
from msa.ops.triton.dense_attention import DENSE_PARTS
from msa.ops.triton.partials import Partials
from msa.ops.triton.sparse_gqa import sparse_parts


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
        parts = max(DENSE_PARTS, sparse_parts(geometry.top_k))
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

    def kv_write_layer(self, *given: torch.Tensor | None) -> None:
        """`msa.ops.triton.kv_write_layer`; one launch."""
        self._admit("kv_write_layer", given)
        kernels.kv_write_layer(*given, pdl=self.pdl)

    def proxy_score(self, *given: Any) -> None:
        """`msa.ops.triton.proxy_score`; one launch."""
        self._admit("proxy_score", given)
        kernels.proxy_score(*given, pdl=self.pdl)

    def select_pages(self, *given: Any) -> None:
        """`msa.ops.triton.select_pages`; one launch."""
        self._admit("select_pages", given)
        kernels.select_pages(*given, pdl=self.pdl)

    def sparse_gqa(self, *given: Any) -> None:
        """`msa.ops.triton.sparse_gqa`; two launches."""
        self._admit("sparse_gqa", given)
        kernels.sparse_gqa(*given, partials=self.partials, pdl=self.pdl)

    def dense_attention(self, *given: Any) -> None:
        """`msa.ops.triton.dense_attention`; two launches."""
        self._admit("dense_attention", given)
        kernels.dense_attention(*given, partials=self.partials, pdl=self.pdl)

    def _admit(self, name: str, given: tuple[Any, ...]) -> None:
        """Pass if this variant is compiled or may be: only a call outside a capture may."""
        dtypes = tuple(tensor.dtype if isinstance(tensor, torch.Tensor) else None for tensor in given)
        variant = (name, *dtypes)
        if variant not in self._compiled:
            named = ", ".join(str(dtype) for dtype in dtypes if dtype is not None)
            refuse_while_capturing(f"Triton kernel {name} for ({named}); call prepare() with these buffers first: it")
            self._compiled.add(variant)
