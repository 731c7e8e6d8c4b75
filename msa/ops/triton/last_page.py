"""The last part of a row's attention, sparse or dense: the page that the row sees in part."""

from __future__ import annotations

import triton
import triton.language as tl

from msa.ops.triton.merge import store_empty, store_partial
from msa.ops.triton.tile import (
    as_operand,
    fold,
    load_page,
    load_queries,
    nothing,
    page_address,
    page_softmax,
    physical_page,
)


@triton.jit
def last_page(
    peaks,
    norms,
    totals,
    q,
    k_cache,
    v_cache,
    table,
    row,
    kv_head,
    end,
    wanted,
    width,
    pages,
    scale,
    KV_HEADS: tl.constexpr,
    G: tl.constexpr,
    LINES: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Part PARTS - 1 of ``row`` (int64), which sees ``end`` tokens: those of page ``end // P``, if it is ``wanted``.

    What comes behind the row is masked at load: it may be NaN.
    """
    line = tl.arange(0, LINES)
    real = line < G
    head = kv_head * G + line
    place = (row * (KV_HEADS * G) + head) * PARTS + (PARTS - 1)
    page = tl.maximum(end, 0) // P
    wanted = wanted & (page * P < end) & (page < width)
    physical = physical_page(table, page, page < width, pages)
    if wanted:
        queries = load_queries(q, row + tl.zeros([LINES], tl.int64), head, real, KV_HEADS * G, D, BLOCK_D)
        address = page_address(physical, KV_HEADS, kv_head, P, D, BLOCK_D)
        seen = page * P + tl.arange(0, P) < end
        keys = load_page(k_cache, address, seen, D, BLOCK_D, True)
        values = load_page(v_cache, address, seen, D, BLOCK_D, True)
        peak, norm, total = nothing(LINES, BLOCK_D)
        more_peak, more_norm, more_total = page_softmax(
            as_operand(queries, k_cache), keys, values, seen, scale, True, WIDE
        )
        peak, norm, total = fold(peak, norm, total, more_peak, more_norm, more_total, real)
        store_partial(peaks, norms, totals, place, peak, norm, total, real, D, BLOCK_D)
    else:
        store_empty(peaks, place, real)
