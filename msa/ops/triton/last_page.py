"""The last parts of a row's attention, sparse or dense: the page that the row sees in part."""

from __future__ import annotations

import triton
import triton.language as tl

from msa.ops.triton.merge import store_partial
from msa.ops.triton.tile import (
    as_operand,
    block_address,
    block_softmax,
    fold,
    load_block,
    nothing,
    physical_page,
)


@triton.jit
def row_end(qo_offsets, length, row, token, Q: tl.constexpr, real):
    """Tokens that rows see: what their offsets say, or where ``qo_offsets`` is None, what their place in Q says."""
    if qo_offsets is None:
        return tl.where(real, length - Q + 1 + token, 0)
    else:
        return tl.minimum(tl.load(qo_offsets + row, mask=real, other=-1) + 1, length)


@triton.jit
def last_page(
    peaks,
    norms,
    totals,
    queries,
    k_cache,
    v_cache,
    table,
    qo_offsets,
    length,
    place,
    base,
    first,
    ends,
    wanted,
    real,
    kv_head,
    block,
    width,
    pages,
    scale,
    Q: tl.constexpr,
    ROWS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    BLOCK_G: tl.constexpr,
    LINES: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Block ``block`` of the page that each row of a tile sees in part, if its lines want it; stored at ``place``.

    What comes behind a row may be NaN, and a weight of zero would not keep it away from the rows before it. So rows go
    together where every value that some of them do not see is finite, and one by one where one is not: the bits are the
    same.

    Args:
        queries: [LINES, D], as loaded.
        ends: [LINES] int32, tokens that the row of each line sees; ascending.
        wanted, real: [LINES] bool.
    """
    row = tl.arange(0, LINES) // BLOCK_G
    last_row = tl.minimum(first + ROWS, Q) - 1
    least = tl.maximum(row_end(qo_offsets, length, base + first, first, Q, True), 0)
    most = tl.maximum(row_end(qo_offsets, length, base + last_row, last_row, Q, True), 0)
    own = tl.maximum(ends, 0) // P
    wanted = wanted & real & (own * P + block * N < ends) & (own < width)
    operand, unit = as_operand(queries, k_cache, 1)
    peak, norm, total = nothing(LINES, BLOCK_D)
    token = block * N + tl.arange(0, N)
    if ROWS == 1:
        page = most // P
        physical = physical_page(table, page, page < width, pages)
        if tl.max(wanted.to(tl.int32)) > 0:
            address = block_address(physical, KV_HEADS, kv_head, block * N, P, N, D, BLOCK_D)
            keys = load_block(k_cache, address, page * P + token < most, D, BLOCK_D, True)
            values = load_block(v_cache, address, page * P + token < most, D, BLOCK_D, True)
            seen = (page * P + token)[None, :] < ends[:, None]
            peak, norm, total = block_softmax(operand, keys, values, seen, scale * unit, page == 0, True, WIDE)
    else:
        for page in tl.range(least // P, tl.minimum(most // P + 1, width), num_stages=1):
            member = wanted & (own == page)
            physical = physical_page(table, page, True, pages)
            if tl.max(member.to(tl.int32)) > 0:
                address = block_address(physical, KV_HEADS, kv_head, block * N, P, N, D, BLOCK_D)
                position = page * P + token
                # The tokens that some rows see and others do not, as far as they lie in this block.
                place_of = least + tl.arange(0, ROWS)
                split = (place_of < most) & (place_of // P == page) & ((place_of % P) // N == block)
                start = (physical.to(tl.int64) * KV_HEADS + kv_head) * (P * D)
                where = start + (place_of % P)[:, None] * D + tl.arange(0, BLOCK_D)[None, :]
                inside = split[:, None] & (tl.arange(0, BLOCK_D) < D)[None, :]
                value = tl.load(v_cache + where, mask=inside, other=0.0).to(tl.float32)
                strange = ((value != value) | (tl.abs(value) == float("inf"))).to(tl.int32)
                passes = tl.where(tl.max(tl.max(strange, axis=1), axis=0) > 0, ROWS, 1)
                for alone in tl.range(0, passes, num_stages=1):
                    only = tl.minimum(first + alone, last_row)
                    limit = tl.where(passes > 1, row_end(qo_offsets, length, base + only, only, Q, True), most)
                    keys = load_block(k_cache, address, position < limit, D, BLOCK_D, True)
                    values = load_block(v_cache, address, position < limit, D, BLOCK_D, True)
                    seen = position[None, :] < ends[:, None]
                    more_peak, more_norm, more_total = block_softmax(
                        operand, keys, values, seen, scale * unit, page == 0, True, WIDE
                    )
                    mine = member & ((row == alone) | (passes == 1))
                    peak, norm, total = fold(peak, norm, total, more_peak, more_norm, more_total, mine)
    store_partial(peaks, norms, totals, place, peak, norm, total, real, D, BLOCK_D)
