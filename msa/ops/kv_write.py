"""Write the keys or values of new tokens into their slots of a paged cache."""

from __future__ import annotations

import torch

from graphcheck.contract import capture_safe
from msa.geometry import FP8
from msa.ops.library import operator

# The largest number of fp8 e4m3. What is above saturates, as in every converter of hardware.
_LARGEST = 448.0


def _kv_write(cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor, scale: float) -> None:
    pages, heads, page_size, dim = cache.shape
    page, offset = slots // page_size, slots % page_size
    first = page * (heads * page_size) + offset
    index = first.unsqueeze(1) + torch.arange(heads, device=cache.device) * page_size
    flat = cache.view(pages * heads * page_size, dim)
    values = rows.reshape(-1, dim)
    if cache.dtype is FP8:
        # Bytes are moved: there is no scatter of fp8.
        stored = (values.to(torch.float32) / scale).clamp_(-_LARGEST, _LARGEST).to(FP8)
        flat.view(torch.uint8).index_copy_(0, index.view(-1), stored.view(torch.uint8))
    else:
        flat.index_copy_(0, index.view(-1), values.to(cache.dtype))


_operator = operator("kv_write(Tensor(a!) cache, Tensor rows, Tensor slots, float scale) -> ()", _kv_write)


@capture_safe(dynamic=("rows", "slots"), static=("scale",), out=("cache",))
def kv_write(cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor, scale: float = 1.0) -> None:
    """Slot ``slots[t]`` of ``cache`` holds ``rows[t]`` in every head; every other slot keeps its bits.

    An fp8 cache gets ``rows / scale``, saturated at 448; NaN stays NaN.

    Args:
        cache: [pages, heads, P, D] dtype or fp8 e4m3, device, contiguous; written in place.
        rows: [T, heads, D] any float dtype, device.
        slots: [T] int64, device, page * P + offset; inside the cache. Equal slots are allowed for the dummy slot only.
        scale: what a stored value is multiplied with when it is read; fp8 only.

    Read live: ``rows``, ``slots``. Frozen at capture: T, the shape of the cache and the scale.
    """
    _operator(cache, rows, slots, scale)
