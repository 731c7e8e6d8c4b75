"""The paged cache of one layer: keys, values and index keys, with one dummy page behind the pool."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from graphcheck.contract import refuse_while_capturing
from msa.errors import ShapeMismatch
from msa.geometry import FP8, Geometry


@dataclass(frozen=True)
class PagedCache:
    """Caches of one layer.

    The last page belongs to no request: rows without a token write there (several of them into one slot, so its
    contents are undefined), and nothing ever reads it.

    Args:
        k, v: [num_pages + 1, Hkv, P, D] dtype or fp8 e4m3, device.
        index_k: [num_pages + 1, 1, P, D] dtype or fp8 e4m3, device; None on dense layers.
        k_scale, v_scale, index_scale: what stored values are multiplied with when they are read, one number per
            tensor, frozen at capture. Scores are those of the stored index keys: a positive scale changes no ranking.

    Raises:
        ShapeMismatch: a scale is not positive, or belongs to a cache that is not stored as fp8.
    """

    k: torch.Tensor
    v: torch.Tensor
    index_k: torch.Tensor | None = None
    k_scale: float = 1.0
    v_scale: float = 1.0
    index_scale: float = 1.0

    def __post_init__(self) -> None:
        scaled = (("k_scale", self.k), ("v_scale", self.v), ("index_scale", self.index_k))
        for name, tensor in scaled:
            scale = getattr(self, name)
            if scale != 1.0 and (tensor is None or tensor.dtype is not FP8 or not scale > 0):
                stored = "no tensor" if tensor is None else str(tensor.dtype)
                raise ShapeMismatch(f"{name} = {scale} for {stored}; expected a positive scale, and {FP8} for it")

    @staticmethod
    def allocate(
        geometry: Geometry,
        device: torch.device | str,
        *,
        sparse: bool = True,
        k_scale: float = 1.0,
        v_scale: float = 1.0,
        index_scale: float = 1.0,
    ) -> PagedCache:
        """A cache with undefined contents.

        Raises:
            CaptureRefused: the current stream is capturing.
        """
        refuse_while_capturing("paged cache")
        shape = (geometry.num_pages + 1, geometry.kv_heads, geometry.page_size, geometry.head_dim)
        index_shape = (geometry.num_pages + 1, 1, geometry.page_size, geometry.head_dim)
        return PagedCache(
            torch.empty(shape, dtype=geometry.stored_kv, device=device),
            torch.empty(shape, dtype=geometry.stored_kv, device=device),
            torch.empty(index_shape, dtype=geometry.stored_index, device=device) if sparse else None,
            k_scale,
            v_scale,
            index_scale if sparse else 1.0,
        )

    def dense(self) -> PagedCache:
        """The same keys and values without the index keys, as a dense layer has them."""
        return PagedCache(self.k, self.v, None, self.k_scale, self.v_scale)
