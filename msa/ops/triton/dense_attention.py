"""Dense attention with the causal ladder: the rows of a request share one read of every page."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from msa.ops.triton.last_page import last_page, row_end
from msa.ops.triton.launch import check_aligned, interpreted, launch_options, needs_wide, opaque, power_of_two
from msa.ops.triton.merge import merge, store_empty, store_partial
from msa.ops.triton.partials import Partials, check_partials
from msa.ops.triton.tile import (
    ATTENTION_WARPS,
    LEAST_LINES,
    as_operand,
    columns,
    dependency_wait,
    fold,
    load_page,
    load_queries,
    load_values,
    most_lines,
    norm_columns,
    nothing,
    page_softmax,
    physical_page,
)

# Parts of a row's whole pages and the fewest pages of one: together with the row's own end they say which it has.
WHOLE_PARTS = 32
LEAST_PAGES = 4
# Parts of a node of the merge.
NODE = 8
# The place of a page is loaded two pages ahead of its tokens, those as far ahead of their use.
STAGES = 5


def whole_parts() -> int:
    """Parts of a row's whole pages; fewer in Triton's interpreter, where they run one after the other."""
    return NODE if interpreted(_attend) else WHOLE_PARTS


def dense_parts() -> int:
    """Parts S that a row's attention is split into: those of its whole pages, and its partial page."""
    return whole_parts() + 1


@triton.jit
def _pages_each(whole, PARTS: tl.constexpr, LEAST: tl.constexpr):
    """Pages of a part of a row that sees ``whole`` pages in full."""
    return tl.maximum((whole + PARTS - 1) // PARTS, LEAST)


@triton.jit
def _walk(
    peaks,
    norms,
    totals,
    operand,
    unit,
    k_cache,
    v_cache,
    table,
    length,
    place,
    first,
    ends,
    real,
    kv_head,
    part,
    width,
    pages,
    Q: tl.constexpr,
    ROWS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    LINES: tl.constexpr,
    PARTS: tl.constexpr,
    LEAST: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One part of ROWS rows: those of the pages that a row sees in full which its own end puts there.

    The next pages are on their way to shared memory while one is computed.
    """
    whole = tl.minimum(tl.maximum(ends, 0) // P, width)
    each = _pages_each(whole, PARTS, LEAST)
    # Ends grow from row to row, and parts with them: the first row's part begins first, the last one's ends last.
    least = tl.minimum(tl.maximum(length - Q + 1 + first, 0) // P, width)
    most = tl.minimum(tl.maximum(length - Q + tl.minimum(first + ROWS, Q), 0) // P, width)
    begin = part * _pages_each(least, PARTS, LEAST)
    end = tl.minimum((part + 1) * _pages_each(most, PARTS, LEAST), most)
    # Most parts of a short request are empty.
    if begin < end:
        peak, norm, total = nothing(LINES, norm_columns(LINES), BLOCK_D)
        for page in tl.range(begin, end, num_stages=STAGES):
            physical = physical_page(table, page, True, pages)
            keys = load_page(k_cache, physical, KV_HEADS, kv_head, True, P, D, BLOCK_D, False)
            values = load_values(v_cache, physical, KV_HEADS, kv_head, True, P, D, BLOCK_D, False)
            more_peak, more_norm, more_total = page_softmax(operand, keys, values, True, unit, False, False, WIDE)
            mine = real & (page >= part * each) & (page < tl.minimum((part + 1) * each, whole))
            peak, norm, total = fold(peak, norm, total, more_peak, more_norm, more_total, mine)
        store_partial(peaks, norms, totals, place, peak, norm, total, real, columns(v_cache, BLOCK_D), D)
    else:
        store_empty(peaks, place, real)


@triton.jit(do_not_specialize=["page_table", "kv_lens", "stride", "width", "pages", "scale"])
def _attend(
    peaks,
    norms,
    totals,
    q,
    k_cache,
    v_cache,
    page_table,
    kv_lens,
    stride,
    width,
    pages,
    scale,
    Q: tl.constexpr,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
    KV_HEADS: tl.constexpr,
    G: tl.constexpr,
    BLOCK_G: tl.constexpr,
    LINES: tl.constexpr,
    WHOLE: tl.constexpr,
    LEAST: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
    WIDE: tl.constexpr,
    PDL: tl.constexpr,
):
    dependency_wait(PDL)
    request = tl.program_id(0) // TILES
    first = (tl.program_id(0) % TILES) * ROWS
    kv_head = tl.program_id(1)
    # The partial pages come first, one row each: what one row does not see, another one may.
    part = tl.program_id(2) - ROWS
    table = page_table + request.to(tl.int64) * stride
    line = tl.arange(0, LINES)
    token = first + line // BLOCK_G
    real = (line < ROWS * BLOCK_G) & (token < Q) & (line % BLOCK_G < G)
    head = (request.to(tl.int64) * Q + token) * (KV_HEADS * G) + kv_head * G + line % BLOCK_G
    queries = load_queries(q, head, real, D, BLOCK_D)
    length = tl.load(kv_lens + request)
    operand, unit = as_operand(queries, k_cache)
    unit = scale * unit
    if part >= 0:
        _walk(
            peaks, norms, totals, operand, unit, k_cache, v_cache, table, length, head * (WHOLE + 1) + part, first,
            tl.where(real, row_end(None, length, None, token, Q), 0), real, kv_head, part, width, pages,
            Q, ROWS, KV_HEADS, LINES, WHOLE, LEAST, P, D, BLOCK_D, STAGES, WIDE,
        )  # fmt: skip
    else:
        alone = first - part - 1
        mine = real & (token == alone)
        peak, norm, total = last_page(
            operand, unit, k_cache, v_cache, table, row_end(None, length, None, alone, Q), mine, kv_head, width, pages,
            KV_HEADS, LINES, P, D, BLOCK_D, WIDE,
        )  # fmt: skip
        place = head * (WHOLE + 1) + WHOLE
        store_partial(peaks, norms, totals, place, peak, norm, total, mine, columns(v_cache, BLOCK_D), D)


def _dense_attention(
    out: torch.Tensor,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    kv_lens: torch.Tensor,
    qo_len: int,
    scale: float,
    peaks: torch.Tensor,
    norms: torch.Tensor,
    totals: torch.Tensor,
    k_scale: float,
    v_scale: float,
    pdl: bool,
) -> None:
    check_aligned(q=q, k_cache=k_cache, v_cache=v_cache, peaks=peaks, norms=norms, totals=totals)
    batch, width = page_table.shape
    pages, kv_heads, page_size, dim = k_cache.shape
    group, parts = q.shape[1] // kv_heads, dense_parts()
    check_partials(peaks, norms, totals, (batch * qo_len, kv_heads * group, parts, dim))
    # Rows of a request that are one tile.
    together = max(min(power_of_two(qo_len), most_lines(k_cache.dtype) // power_of_two(group)), 1)
    tiles = -(-qo_len // together)
    wide = needs_wide(_attend, k_cache.dtype)
    _attend[(batch * tiles, kv_heads, whole_parts() + together)](
        peaks,
        norms,
        totals,
        q,
        k_cache,
        v_cache,
        page_table,
        kv_lens,
        page_table.stride(0),
        width,
        pages,
        scale * k_scale * math.log2(math.e),
        Q=qo_len,
        ROWS=together,
        TILES=tiles,
        KV_HEADS=kv_heads,
        G=group,
        BLOCK_G=power_of_two(group),
        LINES=power_of_two(together * power_of_two(group), LEAST_LINES),
        WHOLE=whole_parts(),
        LEAST=LEAST_PAGES,
        P=page_size,
        D=dim,
        BLOCK_D=power_of_two(dim, 16),
        # Pages of fp32 fill the shared memory.
        STAGES=1 if wide else STAGES,
        WIDE=wide,
        PDL=pdl,
        **launch_options(ATTENTION_WARPS, pdl),
    )
    merge(out, peaks, norms, totals, v_scale, pdl, node=NODE)


_operator = opaque(
    "dense_attention(Tensor(a!) out, Tensor q, Tensor k_cache, Tensor v_cache, Tensor page_table, Tensor kv_lens, "
    "int qo_len, float scale, Tensor(b!) peaks, Tensor(c!) norms, Tensor(d!) totals, float k_scale, float v_scale, "
    "bool pdl) -> ()",
    _dense_attention,
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
    *,
    partials: Partials,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    pdl: bool = False,
) -> None:
    """``out[r]`` is the attention of row r over every token up to its own; exactly zero if there is none.

    Two launches. The first, grid (B * tiles of rows, Hkv, 32 + rows of a tile), makes partial softmaxes in fp32: the pages
    that a row sees in full go to 32 parts of equal length, at least four pages each, and the page that it sees in part to a
    part of its own, made by a program of its own. Which pages a part holds follows from the row's own position: rows of a
    request that end in different pages walk the union of theirs, each taking its own in. So a row's bits do not depend on
    how many query tokens share the step, and no loop is bounded by the capacity. The second adds the parts in one fixed
    tree.

    Args:
        out: [B * Q, Hq, D] dtype, device; written in place.
        q: [B * Q, Hq, D] any float dtype, device; converted to the caches' dtype (fp16 for fp8 caches).
        k_cache, v_cache: [pages, Hkv, P, D] bf16, fp16, fp32 or fp8 e4m3, device.
        page_table: [B, W] int32, device, rows of any stride; unused entries may hold anything.
        kv_lens: [B] int32, device, tokens, the Q new ones included; 0 for padding rows.
        qo_len: Q.
        scale: what logits are multiplied with.
        heads_at_once: of the portable operator; nothing is expanded here.
        partials: workspace for `dense_parts` () parts; its contents need not survive.
        k_scale, v_scale: what stored keys and values are multiplied with.
        pdl: launch as programmatic dependents of the kernels before.

    Read live: queries, caches, table, lengths. Frozen at capture: B, Q, W, all other shapes, and the scales.

    Raises:
        ShapeMismatch: the workspace is not for these shapes.
    """
    workspace = partials.cut(q.shape[0], dense_parts())
    _operator(out, q, k_cache, v_cache, page_table, kv_lens, qo_len, scale, *workspace, k_scale, v_scale, pdl)
