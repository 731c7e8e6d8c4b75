"""Float64 answers for one request at a time, written from the formulas; slow, on the host, without tiles.

A row at position p of a request sees the tokens 0..p. All tensors are float64 on the CPU unless stated otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


def tokens(cache: torch.Tensor, pages: Sequence[int], count: int) -> torch.Tensor:
    """The first ``count`` tokens of a request, float64 [count, heads, D].

    Args:
        cache: [pages, heads, P, D] any float dtype, host.
        pages: physical pages of the request in order.
    """
    none = torch.zeros(0, cache.shape[1], cache.shape[3], dtype=torch.float64)
    return torch.cat([none, *(cache[page].transpose(0, 1).double() for page in pages)])[:count]


def page_scores(index_q: torch.Tensor, index_keys: torch.Tensor, page_size: int) -> torch.Tensor:
    """Largest dot product per page, [heads, ceil(n / P)].

    Args:
        index_q: [heads, D], one row.
        index_keys: [n, D], the tokens that the row sees.
        page_size: P.
    """
    products = index_q.double() @ index_keys.double().T
    pages = products.split(page_size, 1)
    if not index_keys.shape[0]:
        return torch.zeros(index_q.shape[0], 0, dtype=torch.float64)
    return torch.stack([page.amax(1) for page in pages], 1)


def select(scores: Sequence[float], top_k: int, init_pages: int, local_pages: int) -> list[int]:
    """The selected pages of one row and head, ascending.

    Args:
        scores: of the row's valid pages, as Python floats.
        top_k: K.
        init_pages, local_pages: forced at the beginning and at the end.
    """
    count = len(scores)

    def rank(page: int) -> tuple[bool, bool, float, int]:
        forced = page < init_pages or page >= count - local_pages
        number = not math.isnan(scores[page])
        return (not forced, not number, -scores[page] if number else 0.0, page)

    # Python compares 0.0 and -0.0 as equal, so the page decides.
    return sorted(sorted(range(count), key=rank)[:top_k])


def attention(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """Softmax attention of one row, [Hq, D]; zero if it sees nothing.

    Args:
        q: [Hq, D].
        keys, values: [n, Hkv, D], the tokens that the row attends to, the same for every head.
        scale: what logits are multiplied with.
    """
    heads, dim = q.shape
    group = heads // keys.shape[1]
    out = torch.zeros(heads, dim, dtype=torch.float64)
    if not keys.shape[0]:
        return out
    for head in range(heads):
        weights = torch.softmax(keys[:, head // group].double() @ q[head].double() * scale, 0)
        out[head] = weights @ values[:, head // group].double()
    return out


def sparse_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    page_ids: torch.Tensor,
    page_size: int,
    scale: float,
) -> torch.Tensor:
    """Softmax attention of one row over its selected pages, [Hq, D].

    Args:
        q: [Hq, D].
        keys, values: [n, Hkv, D], the tokens that the row sees.
        page_ids: [Hkv, K] integers: logical pages; negative ones are none.
        page_size: P.
        scale: what logits are multiplied with.
    """
    kv_heads = keys.shape[1]
    group = q.shape[0] // kv_heads
    out = []
    for head in range(kv_heads):
        chosen = {int(page) for page in page_ids[head] if page >= 0}
        kept = [position for position in range(keys.shape[0]) if position // page_size in chosen]
        mine = q[head * group : (head + 1) * group]
        out.append(attention(mine, keys[kept, head : head + 1], values[kept, head : head + 1], scale))
    return torch.cat(out)
