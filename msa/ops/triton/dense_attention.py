"""Dense attention with the causal ladder: the rows of a request share one read of every page."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from msa.ops.triton.launch import check_aligned, launch_options, needs_wide, opaque, power_of_two
from msa.ops.triton.merge import merge, store_empty, store_partial
from msa.ops.triton.partials import Partials, check_partials
from msa.ops.triton.tile import as_operand, dependency_wait, load_page, load_queries, page_address, page_step

# Parts of a row and the fewest pages of one: together with the request's own length they say which pages a part has.
DENSE_PARTS = 33
LEAST_PAGES = 4
MOST_ROWS = 8


@triton.jit
def _whole_pages(
    peaks,
    norms,
    totals,
    q,
    k_cache,
    v_cache,
    table,
    base,
    first,
    begin,
    end,
    kv_head,
    part,
    pages,
    scale,
    Q: tl.constexpr,
    ROWS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    G: tl.constexpr,
    BLOCK_G: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One part of ROWS rows: the pages ``begin`` to ``end``, which all of them see in full."""
    line = tl.arange(0, ROWS * BLOCK_G)
    row, head = base + first + line // BLOCK_G, kv_head * G + line % BLOCK_G
    real = (first + line // BLOCK_G < Q) & (line % BLOCK_G < G)
    place = (row * (KV_HEADS * G) + head) * PARTS + part
    queries = as_operand(load_queries(q, row, head, real, KV_HEADS * G, D, BLOCK_D), k_cache)
    peak = tl.full([ROWS * BLOCK_G], float("-inf"), tl.float32)
    norm = tl.zeros([ROWS * BLOCK_G], tl.float32)
    total = tl.zeros([ROWS * BLOCK_G, BLOCK_D], tl.float32)
    everything = tl.full([P], True, tl.int1)
    for page in tl.range(begin, end, num_stages=STAGES):
        physical = tl.minimum(tl.maximum(tl.load(table + page), 0), pages - 1)
        address = page_address(physical, KV_HEADS, kv_head, P, D, BLOCK_D)
        keys = load_page(k_cache, address, everything, D, BLOCK_D, False)
        values = load_page(v_cache, address, everything, D, BLOCK_D, False)
        peak, norm, total = page_step(peak, norm, total, queries, keys, values, everything, scale, False, WIDE)
    store_partial(peaks, norms, totals, place, peak, norm, total, real, D, BLOCK_D)


@triton.jit
def _ladder(
    peaks,
    norms,
    totals,
    q,
    k_cache,
    v_cache,
    table,
    row,
    whole,
    end,
    width,
    kv_head,
    pages,
    scale,
    KV_HEADS: tl.constexpr,
    G: tl.constexpr,
    M: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The last part of one row: the pages from ``whole`` on. What comes behind the row is masked at load."""
    rows, head = row + tl.zeros([M], tl.int64), kv_head * G + tl.arange(0, M)
    real = tl.arange(0, M) < G
    queries = as_operand(load_queries(q, rows, head, real, KV_HEADS * G, D, BLOCK_D), k_cache)
    peak = tl.full([M], float("-inf"), tl.float32)
    norm = tl.zeros([M], tl.float32)
    total = tl.zeros([M, BLOCK_D], tl.float32)
    for page in tl.range(whole, tl.minimum((end + P - 1) // P, width), num_stages=1):
        physical = tl.minimum(tl.maximum(tl.load(table + page), 0), pages - 1)
        address = page_address(physical, KV_HEADS, kv_head, P, D, BLOCK_D)
        seen = page * P + tl.arange(0, P) < end
        keys = load_page(k_cache, address, seen, D, BLOCK_D, True)
        values = load_page(v_cache, address, seen, D, BLOCK_D, True)
        peak, norm, total = page_step(peak, norm, total, queries, keys, values, seen, scale, True, WIDE)
    place = (rows * (KV_HEADS * G) + head) * PARTS + (PARTS - 1)
    store_partial(peaks, norms, totals, place, peak, norm, total, real, D, BLOCK_D)


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
    BLOCKS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    G: tl.constexpr,
    BLOCK_G: tl.constexpr,
    M_LADDER: tl.constexpr,
    PARTS: tl.constexpr,
    LEAST: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
    WIDE: tl.constexpr,
    PDL: tl.constexpr,
):
    dependency_wait(PDL)
    request = tl.program_id(0) // BLOCKS
    first = (tl.program_id(0) % BLOCKS) * ROWS
    kv_head = tl.program_id(1)
    part = tl.program_id(2)
    length = tl.load(kv_lens + request)
    base = request.to(tl.int64) * Q
    table = page_table + request.to(tl.int64) * stride
    # Row `first` sees the fewest tokens of the rows at hand: pages up to its end need no mask for any of them.
    whole = tl.minimum(tl.maximum(length - Q + first + 1, 0) // P, width)
    token = first + part - (PARTS - 1)
    each = tl.maximum((whole + PARTS - 2) // (PARTS - 1), LEAST)
    if part < PARTS - 1:
        # Most parts of a short request are empty: they end here, without a query read.
        if part * each < whole:
            _whole_pages(
                peaks, norms, totals, q, k_cache, v_cache, table, base, first, part * each,
                tl.minimum((part + 1) * each, whole), kv_head, part, pages, scale,
                Q, ROWS, KV_HEADS, G, BLOCK_G, PARTS, P, D, BLOCK_D, STAGES, WIDE,
            )  # fmt: skip
        else:
            line = tl.arange(0, ROWS * BLOCK_G)
            row, head = base + first + line // BLOCK_G, kv_head * G + line % BLOCK_G
            real = (first + line // BLOCK_G < Q) & (line % BLOCK_G < G)
            store_empty(peaks, (row * (KV_HEADS * G) + head) * PARTS + part, real)
    elif token < Q:
        _ladder(
            peaks, norms, totals, q, k_cache, v_cache, table, base + token, whole, length - Q + token + 1, width,
            kv_head, pages, scale, KV_HEADS, G, M_LADDER, PARTS, P, D, BLOCK_D, WIDE,
        )  # fmt: skip


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
    group = q.shape[1] // kv_heads
    check_partials(peaks, norms, totals, (batch * qo_len, kv_heads * group, DENSE_PARTS, dim))
    together = min(power_of_two(qo_len), MOST_ROWS)
    blocks = -(-qo_len // together)
    lines = power_of_two(together * power_of_two(group), 16)
    _attend[(batch * blocks, kv_heads, DENSE_PARTS - 1 + together)](
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
        BLOCKS=blocks,
        KV_HEADS=kv_heads,
        G=group,
        BLOCK_G=lines // together,
        M_LADDER=power_of_two(group, 16),
        PARTS=DENSE_PARTS,
        LEAST=LEAST_PAGES,
        P=page_size,
        D=dim,
        BLOCK_D=power_of_two(dim, 16),
        STAGES=2,
        WIDE=needs_wide(_attend, k_cache.dtype),
        PDL=pdl,
        **launch_options(8 if lines > 32 else 4, pdl),
    )
    merge(out, peaks, norms, totals, v_scale, pdl)


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

    Two launches. The first, grid (B, Hkv, 32 + rows), makes partial softmaxes in fp32: the pages that every row of a
    request sees in full go to 32 parts of equal length, at least four pages each, and what is left, at most two pages,
    to a part of its own per row, masked. The number of pages of a part follows from the request's own length, so its
    bits depend on nothing else, and no loop is bounded by the capacity. The second adds the parts in one fixed tree.

    Args:
        out: [B * Q, Hq, D] dtype, device; written in place.
        q: [B * Q, Hq, D] any float dtype, device; converted to the caches' dtype (bf16 for fp8 caches).
        k_cache, v_cache: [pages, Hkv, P, D] bf16, fp16, fp32 or fp8 e4m3, device.
        page_table: [B, W] int32, device, rows of any stride; unused entries may hold anything.
        kv_lens: [B] int32, device, tokens, the Q new ones included; 0 for padding rows.
        qo_len: Q.
        scale: what logits are multiplied with.
        heads_at_once: of the portable operator; nothing is expanded here.
        partials: workspace for ``DENSE_PARTS`` parts; its contents need not survive.
        k_scale, v_scale: what stored keys and values are multiplied with.
        pdl: launch as programmatic dependents of the kernels before.

    Read live: queries, caches, table, lengths. Frozen at capture: B, Q, W, all other shapes, and the scales.

    Raises:
        ShapeMismatch: the workspace is not for these shapes.
    """
    workspace = partials.cut(q.shape[0], DENSE_PARTS)
    _operator(out, q, k_cache, v_cache, page_table, kv_lens, qo_len, scale, *workspace, k_scale, v_scale, pdl)
