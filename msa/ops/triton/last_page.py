"""The last page of a row's attention, sparse or dense: the one that the row sees in part."""

from __future__ import annotations

import triton
import triton.language as tl

from msa.ops.triton.tile import load_page, load_values, norm_columns, nothing, page_softmax, physical_page


@triton.jit
def row_end(qo_offsets, length, row, token, Q: tl.constexpr):
    """Tokens that a row sees: what its offset says, or where ``qo_offsets`` is None, what its place ``token`` in Q says."""
    if qo_offsets is None:
        return length - Q + 1 + token
    else:
        return tl.minimum(tl.load(qo_offsets + row) + 1, length)


@triton.jit
def last_page(
    operand,
    unit,
    k_cache,
    v_cache,
    table,
    end,
    mine,
    kv_head,
    width,
    pages,
    KV_HEADS: tl.constexpr,
    LINES: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The softmax of a tile over the page that a row which sees ``end`` tokens sees in part.

    Args:
        operand, unit: queries [LINES, BLOCK_D] of `as_operand`, and what products with them are multiplied with [LINES].
        mine: [LINES] bool, the row's lines.

    Returns:
        peak [LINES], norm [LINES, C] and total [LINES, BLOCK_D], fp32; nothing for other lines.
    """
    peak, norm, total = nothing(LINES, norm_columns(LINES), BLOCK_D)
    page = tl.maximum(end, 0) // P
    if (page * P < end) & (page < width):
        physical = physical_page(table, page, True, pages)
        seen = page * P + tl.arange(0, P) < end
        # What comes behind the row may be NaN, which a weight of zero would not keep away from it.
        keys = load_page(k_cache, physical, KV_HEADS, kv_head, seen, P, D, BLOCK_D, True)
        values = load_values(v_cache, physical, KV_HEADS, kv_head, seen, P, D, BLOCK_D, True)
        both = mine[:, None] & seen[None, :]
        peak, norm, total = page_softmax(operand, keys, values, both, unit, page == 0, True, WIDE)
    return peak, norm, total
