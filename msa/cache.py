"""The paged cache of one layer: keys, values and index keys, with one dummy page behind the pool."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from graphcheck.contract import refuse_while_capturing
from msa.geometry import Geometry


@dataclass(frozen=True)
class PagedCache:
    """Caches of one layer.

    The last page belongs to no request: rows without a token write there (several of them into one slot, so its
    contents are undefined), and nothing ever reads it.

    Args:
        k, v: [num_pages + 1, Hkv, P, D] dtype, device.
        index_k: [num_pages + 1, 1, P, D] dtype, device; None on dense layers.
    """

    k: torch.Tensor
    v: torch.Tensor
    index_k: torch.Tensor | None = None

    @staticmethod
    def allocate(geometry: Geometry, device: torch.device | str, *, sparse: bool = True) -> PagedCache:
        """A cache with undefined contents.

        Raises:
            CaptureRefused: the current stream is capturing.
        """
        refuse_while_capturing("paged cache")
        shape = (geometry.num_pages + 1, geometry.kv_heads, geometry.page_size, geometry.head_dim)
        index_shape = (geometry.num_pages + 1, 1, geometry.page_size, geometry.head_dim)
        return PagedCache(
            torch.empty(shape, dtype=geometry.dtype, device=device),
            torch.empty(shape, dtype=geometry.dtype, device=device),
            torch.empty(index_shape, dtype=geometry.dtype, device=device) if sparse else None,
        )
