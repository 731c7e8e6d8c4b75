"""Sparse attention: every query row attends to its own selected pages."""

from __future__ import annotations

import torch

from graphcheck.contract import capture_safe
from msa.ops.library import operator
from msa.paging import page_index
from msa.tile import combine, dots, page_heads, query_tiles, weigh, weighted


def _sparse_gqa(
    out: torch.Tensor,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_ids: torch.Tensor,
    page_table: torch.Tensor,
    row_requests: torch.Tensor,
    kv_lens: torch.Tensor,
    qo_offsets: torch.Tensor,
    scale: float,
    v_scale: float,
) -> None:
    rows, kv_heads, top_k = page_ids.shape
    pages, _, page_size, dim = k_cache.shape
    group = q.shape[1] // kv_heads
    pseudo = rows * kv_heads
    ids = page_ids.view(rows, pseudo // rows * top_k).to(torch.int64)
    table = page_index(page_table, pages).index_select(0, row_requests)
    physical = table.gather(1, ids.clamp(0, table.shape[1] - 1)).view(rows, kv_heads, top_k)
    index = physical * kv_heads + torch.arange(kv_heads, device=out.device).view(1, kv_heads, 1)
    by_page = index.view(pseudo, top_k).unbind(1)
    # A row ends at its own offset and at its request's length, whichever comes first; an absent page lies behind both.
    ends = torch.minimum(qo_offsets + 1, kv_lens.index_select(0, row_requests)).view(rows, 1, 1, 1)
    ids = ids.view(rows, kv_heads, top_k, 1)
    positions = ids * page_size + torch.arange(page_size, device=out.device)
    hidden = ((positions >= ends) | (ids < 0)).view(pseudo, top_k, 1, page_size)
    tiles = query_tiles(q.view(rows, kv_heads, group, dim)).view(pseudo, -1, dim)
    logits = torch.stack([dots(tiles, page_heads(k_cache, page)) for page in by_page], 1)
    weights = weigh(logits.mul_(scale).masked_fill_(hidden, float("-inf")))
    unseen = hidden.view(pseudo, top_k, page_size, 1).unbind(1)
    parts = [
        weighted(weight, page_heads(v_cache, page).masked_fill_(mask, 0.0))
        for weight, page, mask in zip(weights.unbind(1), by_page, unseen, strict=True)
    ]
    heads = combine(weights, parts).narrow(1, 0, group)
    if v_scale != 1.0:
        heads = heads * v_scale
    out.copy_(heads.reshape(rows, kv_heads * group, dim))


_operator = operator(
    "sparse_gqa(Tensor(a!) out, Tensor q, Tensor k_cache, Tensor v_cache, Tensor page_ids, Tensor page_table, "
    "Tensor row_requests, Tensor kv_lens, Tensor qo_offsets, float scale, float v_scale) -> ()",
    _sparse_gqa,
)


@capture_safe(
    dynamic=("q", "k_cache", "v_cache", "page_ids", "page_table", "kv_lens", "qo_offsets"),
    static=("row_requests", "scale", "v_scale"),
    out=("out",),
)
def sparse_gqa(
    out: torch.Tensor,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_ids: torch.Tensor,
    page_table: torch.Tensor,
    row_requests: torch.Tensor,
    kv_lens: torch.Tensor,
    qo_offsets: torch.Tensor,
    scale: float,
    v_scale: float = 1.0,
) -> None:
    """``out[r]`` is the attention of row r over its selected pages; exactly zero if it sees no token.

    Every row is a pseudo request of one query token that keeps its request's full length and has an offset of its own,
    so rows of one request share no page list. Pages are visited in the order of ``page_ids`` (ascending); the
    accumulation is fp32 and not split. Values that a row does not see are masked at load: stale slots may hold NaN.

    Args:
        out: [T, Hq, D] dtype, device; written in place.
        q: [T, Hq, D] any float dtype, device, contiguous.
        k_cache, v_cache: [pages, Hkv, P, D] dtype or fp8 e4m3, device, contiguous.
        page_ids: [T, Hkv, K] int32, device, contiguous: ascending logical pages, then -1.
        page_table: [B, W] int32, device; entries that no id names may hold anything.
        row_requests: [T] int64, device: the row's request.
        kv_lens: [B] int32, device, tokens.
        qo_offsets: [T] int32, device: position of the row; negative if it has none.
        scale: what logits are multiplied with, the scale of the stored keys included.
        v_scale: what stored values are multiplied with.

    Read live: queries, caches, ids, table, lengths, offsets. Frozen at capture: all shapes and the scales.
    """
    _operator(out, q, k_cache, v_cache, page_ids, page_table, row_requests, kv_lens, qo_offsets, scale, v_scale)
