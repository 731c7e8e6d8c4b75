"""Proxy scores: the largest dot product of an index query with the index keys of each page."""

from __future__ import annotations

import torch

from graphcheck.contract import capture_safe
from msa.geometry import TILE_ROWS
from msa.ops.library import operator
from msa.paging import page_index
from msa.tile import dots, page_heads, query_tiles


def _proxy_score(
    scores: torch.Tensor,
    index_q: torch.Tensor,
    index_k: torch.Tensor,
    page_table: torch.Tensor,
    kv_lens: torch.Tensor,
    qo_len: int,
) -> None:
    batch, width = page_table.shape
    pages, _, page_size, _ = index_k.shape
    heads = scores.shape[0]
    columns = width * page_size
    keys = page_heads(index_k, page_index(page_table, pages).view(-1))
    # All Q * Hidx rows of a request go against one read of its keys, 16 rows at a time.
    rows = index_q.view(batch, qo_len * heads, -1)
    raw = []
    for block in rows.split(TILE_ROWS, 1):
        tiles = query_tiles(block).unsqueeze(1).expand(batch, width, -1, -1)
        raw.append(dots(tiles.reshape(batch * width, TILE_ROWS, -1), keys).narrow(1, 0, block.shape[1]))
    every = raw[0] if len(raw) == 1 else torch.cat(raw, 1)
    positions = torch.arange(columns, device=scores.device).view(1, 1, columns)
    last = (kv_lens - qo_len).unsqueeze(1) + torch.arange(qo_len, device=scores.device)
    hidden = (positions > last.unsqueeze(2)).view(batch, qo_len, width, page_size)
    logits = every.view(batch, width, qo_len, heads, page_size)
    logits = logits.masked_fill(hidden.permute(0, 2, 1, 3).unsqueeze(3), float("-inf"))
    best = logits.amax(-1).permute(3, 0, 2, 1).reshape(heads, batch * qo_len, width)
    unseen = hidden.select(3, 0).reshape(1, batch * qo_len, width)
    target = scores.narrow(1, 0, batch * qo_len)
    target.copy_(torch.where(unseen, target, best))


_operator = operator(
    "proxy_score(Tensor(a!) scores, Tensor index_q, Tensor index_k, Tensor page_table, Tensor kv_lens, int qo_len) "
    "-> ()",
    _proxy_score,
)


@capture_safe(dynamic=("index_q", "index_k", "page_table", "kv_lens"), static=("qo_len",), out=("scores",))
def proxy_score(
    scores: torch.Tensor,
    index_q: torch.Tensor,
    index_k: torch.Tensor,
    page_table: torch.Tensor,
    kv_lens: torch.Tensor,
    qo_len: int,
) -> None:
    """``scores[h, r, j]`` is the maximum of ``index_q[r, h] . index_k`` over the tokens of page j that row r sees.

    Row r = b * Q + t sees positions up to and including kv_lens[b] - Q + t. Pages that it does not see keep the bits
    that ``scores`` had: readers clamp to the row's valid pages, so nothing needs a fill. The product is not scaled.
    All Q rows of a request share one read of its keys (the work split of vLLM's
    ``models/minimax_m3/common/ops/index_topk.py``).

    Args:
        scores: [Hidx, rows >= B * Q, W] fp32, device; written in place.
        index_q: [B * Q, Hidx, D] any float dtype, device, contiguous.
        index_k: [pages, 1, P, D] dtype or fp8 e4m3, device, contiguous. The scores are those of the stored values.
        page_table: [B, W] int32, device; entries that no row sees may hold anything.
        kv_lens: [B] int32, device, tokens, the Q new ones included; 0 for padding rows.
        qo_len: Q.

    Read live: queries, keys, table and lengths. Frozen at capture: B, Q, W and all other shapes.
    """
    _operator(scores, index_q, index_k, page_table, kv_lens, qo_len)
