"""Write the keys or values of new tokens into their slots of a paged cache."""

from __future__ import annotations

import torch

from graphcheck.contract import capture_safe
from msa.ops.library import operator


def _kv_write(cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor) -> None:
    pages, heads, page_size, dim = cache.shape
    page, offset = slots // page_size, slots % page_size
    first = page * (heads * page_size) + offset
    index = first.unsqueeze(1) + torch.arange(heads, device=cache.device) * page_size
    flat = cache.view(pages * heads * page_size, dim)
    flat.index_copy_(0, index.view(-1), rows.reshape(-1, dim).to(cache.dtype))


_operator = operator("kv_write(Tensor(a!) cache, Tensor rows, Tensor slots) -> ()", _kv_write)


@capture_safe(dynamic=("rows", "slots"), out=("cache",))
def kv_write(cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor) -> None:
    """Slot ``slots[t]`` of ``cache`` holds ``rows[t]`` in every head; every other slot keeps its bits.

    Args:
        cache: [pages, heads, P, D] dtype, device, contiguous; written in place.
        rows: [T, heads, D] any float dtype, device.
        slots: [T] int64, device, page * P + offset; inside the cache. Equal slots are allowed for the dummy slot only.

    Read live: ``rows``, ``slots``. Frozen at capture: T and the shape of the cache.
    """
    _operator(cache, rows, slots)
