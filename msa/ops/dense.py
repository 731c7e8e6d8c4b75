"""Dense attention with the causal ladder: every query row attends to all tokens up to its own."""

from __future__ import annotations

import torch

from graphcheck.contract import capture_safe
from msa.ops.library import operator
from msa.paging import page_index
from msa.tile import combine, dots, page_heads, query_tiles, weigh, weighted


def _dense_attention(
    out: torch.Tensor,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    kv_lens: torch.Tensor,
    qo_len: int,
    scale: float,
    heads_at_once: int,
    v_scale: float,
) -> None:
    batch, width = page_table.shape
    pages, kv_heads, page_size, dim = k_cache.shape
    group = q.shape[1] // kv_heads
    physical = page_index(page_table, pages).unsqueeze(2) * kv_heads
    positions = torch.arange(width * page_size, device=out.device)
    last = (kv_lens - qo_len).unsqueeze(1) + torch.arange(qo_len, device=out.device)
    hidden = (positions > last.unsqueeze(2)).view(batch, qo_len, width, 1, page_size)
    queries = q.view(batch, qo_len, kv_heads, group, dim)
    target = out.view(batch, qo_len, kv_heads, group, dim)
    for first in range(0, kv_heads, heads_at_once):
        heads = min(heads_at_once, kv_heads - first)
        index = (physical + torch.arange(first, first + heads, device=out.device)).view(-1)
        attended = _attend(
            queries.narrow(2, first, heads), page_heads(k_cache, index), page_heads(v_cache, index), hidden, scale
        )
        if v_scale != 1.0:
            attended = attended * v_scale
        target.narrow(2, first, heads).copy_(attended.narrow(3, 0, group))


def _attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, hidden: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention fp32 [B, Q, h, 16, D] of queries [B, Q, h, G, D] over tiles [B * W * h, P, D].

    ``hidden`` [B, Q, W, 1, P] bool marks what a row does not see.
    """
    batch, qo_len, heads, _, dim = queries.shape
    width, page_size = hidden.shape[2], hidden.shape[4]
    tiles = query_tiles(queries).unsqueeze(2).expand(-1, -1, width, -1, -1, -1)
    raw = [
        dots(row.reshape(batch * width * heads, -1, dim), keys).view(batch, width, heads, -1, page_size)
        for row in tiles.unbind(1)
    ]
    logits = torch.stack(raw, 1).mul_(scale).masked_fill_(hidden.unsqueeze(3), float("-inf"))
    # [B, Q, W, h, 16, P] -> [B * Q * h, W, 16, P]
    logits = logits.permute(0, 1, 3, 2, 4, 5).reshape(batch * qo_len * heads, width, -1, page_size)
    weights = weigh(logits)
    by_row = weights.view(batch, qo_len, heads, width, -1, page_size).permute(1, 0, 3, 2, 4, 5)
    values = values.view(batch, width, heads, page_size, dim)
    unseen = hidden.permute(1, 0, 2, 4, 3).unsqueeze(3)
    # Values are masked per row: what comes behind a row must not reach it, not even as zero times NaN.
    sums = [
        weighted(
            weight.reshape(batch * width * heads, -1, page_size),
            values.masked_fill(mask, 0.0).view(batch * width * heads, page_size, dim),
        ).view(batch, width, heads, -1, dim)
        for weight, mask in zip(by_row.unbind(0), unseen.unbind(0), strict=True)
    ]
    parts = torch.stack(sums, 1).permute(2, 0, 1, 3, 4, 5).reshape(width, batch * qo_len * heads, -1, dim)
    return combine(weights, list(parts.unbind(0))).view(batch, qo_len, heads, -1, dim)


_operator = operator(
    "dense_attention(Tensor(a!) out, Tensor q, Tensor k_cache, Tensor v_cache, Tensor page_table, Tensor kv_lens, "
    "int qo_len, float scale, int heads_at_once, float v_scale) -> ()",
    _dense_attention,
)


@capture_safe(
    dynamic=("q", "k_cache", "v_cache", "page_table", "kv_lens"),
    static=("qo_len", "scale", "heads_at_once", "v_scale"),
    out=("out",),
)
def dense_attention(
    out: torch.Tensor,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    kv_lens: torch.Tensor,
    qo_len: int,
    scale: float,
    heads_at_once: int = 1,
    v_scale: float = 1.0,
) -> None:
    """``out[r]`` is the attention of row r over every token up to its own; exactly zero if there is none.

    Row r = b * Q + t sees positions up to and including kv_lens[b] - Q + t. The cache is expanded to fp32 at the width
    of the table, ``heads_at_once`` KV heads at a time: that number changes no bit, only the transient memory.

    Args:
        out: [B * Q, Hq, D] dtype, device, contiguous; written in place.
        q: [B * Q, Hq, D] any float dtype, device, contiguous.
        k_cache, v_cache: [pages, Hkv, P, D] dtype or fp8 e4m3, device, contiguous.
        page_table: [B, W] int32, device; W is the capacity, not the longest row. Unused entries may hold anything.
        kv_lens: [B] int32, device, tokens, the Q new ones included; 0 for padding rows.
        qo_len: Q.
        scale: what logits are multiplied with, the scale of the stored keys included.
        heads_at_once: KV heads expanded at one time; 1 bounds the graph's pool.
        v_scale: what stored values are multiplied with.

    Read live: queries, caches, table, lengths. Frozen at capture: B, Q, W, scales, ``heads_at_once`` and all shapes.
    """
    _operator(out, q, k_cache, v_cache, page_table, kv_lens, qo_len, scale, heads_at_once, v_scale)
