"""Sparse attention: the rows of a request walk the union of their pages, each adding its own pages only."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from msa.ops.triton.last_page import last_page
from msa.ops.triton.launch import check_aligned, interpreted, launch_options, needs_wide, opaque, power_of_two
from msa.ops.triton.merge import merge, store_empty, store_partial
from msa.ops.triton.partials import Partials, check_partials
from msa.ops.triton.tile import (
    ATTENTION_WARPS,
    TILE_LINES,
    as_operand,
    dependency_wait,
    fold,
    load_page,
    load_queries,
    nothing,
    page_address,
    page_softmax,
    physical_page,
)

# Entries of a page list whose softmaxes are folded one by one before the merge: what makes a row's bits.
NODE = 4
_NO_PAGE = tl.constexpr(2**63 - 1)
_PAGE = tl.constexpr(2**32)


class Split(NamedTuple):
    """How the work is split, which no bit depends on.

    Attributes:
        rows: query rows of a request that walk their pages together.
        entries: entries of each of their lists that a program walks: 1 or `NODE`.
    """

    rows: int
    entries: int


# Tiles up to which each row walks alone, and from which programs walk `NODE` entries.
FEW_TILES = 4
MANY_TILES = 64
STAGES = 2


def split_of(batch: int, qo_len: int, kv_heads: int, group: int) -> Split:
    """The split for B requests of Q rows and Hkv heads of G queries each.

    Few requests: a program per page, so that none waits for a second one. Many: programs that walk, which store fewer
    partial softmaxes and read a page once for all rows that selected it. In Triton's interpreter there is one split: a
    product of numpy has other bits at another place of the tile.
    """
    together = min(power_of_two(qo_len), TILE_LINES // power_of_two(group))
    if interpreted(_attend):
        return Split(together, NODE)
    tiles = batch * -(-qo_len // together) * kv_heads
    return Split(together if tiles > FEW_TILES else 1, NODE if tiles >= MANY_TILES else 1)


def sparse_parts(top_k: int, entries: int = 1) -> int:
    """Parts S that a row's attention is split into: one per ``entries`` of its list, and one for its partial page."""
    return -(-top_k // entries) + 1


@triton.jit
def _distinct(keys, N: tl.constexpr):
    """How many different pages keys [N] name."""
    index = tl.arange(0, N)
    earlier = (keys[:, None] == keys[None, :]) & (index[None, :] < index[:, None])
    repeated = tl.max(earlier.to(tl.int32), axis=1)
    return tl.sum(((repeated == 0) & (keys != _NO_PAGE)).to(tl.int32))


@triton.jit
def _own_page(page_ids, row, kv_head, slot, end, real, width, KV_HEADS: tl.constexpr, K: tl.constexpr, P: tl.constexpr):
    """Entry ``slot`` of each line's list [M] int32, -1 where its row does not see that page in full."""
    ids = tl.load(page_ids + (row * KV_HEADS + kv_head) * K + slot, mask=tl.where(slot < K, real, False), other=-1)
    return tl.where((ids >= 0) & (ids < width) & ((ids + 1) * P <= end), ids, -1)


@triton.jit
def _whole_pages(
    peaks,
    norms,
    totals,
    q,
    k_cache,
    v_cache,
    page_ids,
    table,
    length,
    qo_offsets,
    base,
    first,
    kv_head,
    part,
    width,
    pages,
    scale,
    Q: tl.constexpr,
    ROWS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    G: tl.constexpr,
    BLOCK_G: tl.constexpr,
    LINES: tl.constexpr,
    K: tl.constexpr,
    STEP: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
    WIDE: tl.constexpr,
):
    """One part of ROWS rows: the pages that a row sees in full among its entries ``part * STEP`` and on."""
    token = first + tl.arange(0, ROWS)
    slot = part * STEP + tl.arange(0, STEP)
    end = tl.minimum(tl.load(qo_offsets + base + token, mask=token < Q, other=-1) + 1, length)
    entry = ((base + token)[:, None] * KV_HEADS + kv_head) * K + slot[None, :]
    ids = tl.load(page_ids + entry, mask=(token < Q)[:, None] & (slot < K)[None, :], other=-1)
    whole = (ids >= 0) & (ids < width) & ((ids + 1) * P <= end[:, None])
    keys_of = tl.where(whole, ids.to(tl.int64) * _PAGE + physical_page(table, ids, whole, pages), _NO_PAGE)
    walk = tl.reshape(keys_of, [ROWS * STEP])
    count = _distinct(walk, ROWS * STEP)

    line = tl.arange(0, LINES)
    row, head = base + first + line // BLOCK_G, kv_head * G + line % BLOCK_G
    real = (line < ROWS * BLOCK_G) & (first + line // BLOCK_G < Q) & (line % BLOCK_G < G)
    place = (row * (KV_HEADS * G) + head) * PARTS + part
    if count > 0:
        queries = as_operand(load_queries(q, row, head, real, KV_HEADS * G, D, BLOCK_D), k_cache)
        end_of = tl.minimum(tl.load(qo_offsets + row, mask=real, other=-1) + 1, length)
        first_slot = part * STEP
        own_a = _own_page(page_ids, row, kv_head, first_slot, end_of, real, width, KV_HEADS, K, P)
        if STEP > 1:
            own_b = _own_page(page_ids, row, kv_head, first_slot + 1, end_of, real, width, KV_HEADS, K, P)
            own_c = _own_page(page_ids, row, kv_head, first_slot + 2, end_of, real, width, KV_HEADS, K, P)
            own_d = _own_page(page_ids, row, kv_head, first_slot + 3, end_of, real, width, KV_HEADS, K, P)
        peak, norm, total = nothing(LINES, BLOCK_D)
        everything = tl.full([P], True, tl.int1)
        key = tl.min(walk)
        for _ in tl.range(0, count, num_stages=STAGES):
            address = page_address(key % _PAGE, KV_HEADS, kv_head, P, D, BLOCK_D)
            keys = load_page(k_cache, address, everything, D, BLOCK_D, False)
            values = load_page(v_cache, address, everything, D, BLOCK_D, False)
            more_peak, more_norm, more_total = page_softmax(queries, keys, values, everything, scale, False, WIDE)
            page = (key // _PAGE).to(tl.int32)
            mine = own_a == page
            if STEP > 1:
                mine = mine | (own_b == page) | (own_c == page) | (own_d == page)
            peak, norm, total = fold(peak, norm, total, more_peak, more_norm, more_total, mine)
            key = tl.min(tl.where(walk > key, walk, _NO_PAGE))
        store_partial(peaks, norms, totals, place, peak, norm, total, real, D, BLOCK_D)
    else:
        store_empty(peaks, place, real)


@triton.jit(do_not_specialize=["page_table", "kv_lens", "qo_offsets", "width", "pages", "scale"])
def _attend(
    peaks,
    norms,
    totals,
    q,
    k_cache,
    v_cache,
    page_ids,
    page_table,
    kv_lens,
    qo_offsets,
    width,
    pages,
    scale,
    Q: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    G: tl.constexpr,
    BLOCK_G: tl.constexpr,
    LINES: tl.constexpr,
    K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STEP: tl.constexpr,
    PARTS: tl.constexpr,
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
    part = tl.program_id(2) - ROWS
    length = tl.load(kv_lens + request)
    base = request.to(tl.int64) * Q
    table = page_table + request.to(tl.int64) * width
    token = first + tl.program_id(2)
    if part >= 0:
        _whole_pages(
            peaks, norms, totals, q, k_cache, v_cache, page_ids, table, length, qo_offsets, base, first, kv_head, part,
            width, pages, scale, Q, ROWS, KV_HEADS, G, BLOCK_G, LINES, K, STEP, PARTS, P, D, BLOCK_D, STAGES, WIDE,
        )  # fmt: skip
    elif token < Q:
        end = tl.minimum(tl.load(qo_offsets + base + token) + 1, length)
        slot = tl.arange(0, BLOCK_K)
        ids = tl.load(page_ids + ((base + token) * KV_HEADS + kv_head) * K + slot, mask=slot < K, other=-1)
        listed = tl.max((ids == tl.maximum(end, 0) // P).to(tl.int32)) > 0
        last_page(
            peaks, norms, totals, q, k_cache, v_cache, table, base + token, kv_head, end, listed, width, pages, scale,
            KV_HEADS, G, LINES, PARTS, P, D, BLOCK_D, WIDE,
        )  # fmt: skip


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
    peaks: torch.Tensor,
    norms: torch.Tensor,
    totals: torch.Tensor,
    k_scale: float,
    v_scale: float,
    pdl: bool,
) -> None:
    check_aligned(q=q, k_cache=k_cache, v_cache=v_cache, page_ids=page_ids, peaks=peaks, norms=norms, totals=totals)
    rows, kv_heads, top_k = page_ids.shape
    batch, width = page_table.shape
    pages, _, page_size, dim = k_cache.shape
    qo_len, group = rows // batch, q.shape[1] // kv_heads
    split = split_of(batch, qo_len, kv_heads, group)
    parts = sparse_parts(top_k, split.entries)
    check_partials(peaks, norms, totals, (rows, kv_heads * group, parts, dim))
    blocks = -(-qo_len // split.rows)
    wide = needs_wide(_attend, k_cache.dtype)
    _attend[(batch * blocks, kv_heads, split.rows + parts - 1)](
        peaks,
        norms,
        totals,
        q,
        k_cache,
        v_cache,
        page_ids,
        page_table,
        kv_lens,
        qo_offsets,
        width,
        pages,
        scale * k_scale * math.log2(math.e),
        Q=qo_len,
        ROWS=split.rows,
        BLOCKS=blocks,
        KV_HEADS=kv_heads,
        G=group,
        BLOCK_G=power_of_two(group),
        LINES=TILE_LINES,
        K=top_k,
        BLOCK_K=power_of_two(top_k),
        STEP=split.entries,
        PARTS=parts,
        P=page_size,
        D=dim,
        BLOCK_D=power_of_two(dim, 16),
        # Pages of fp32 fill the shared memory with one.
        STAGES=1 if wide else STAGES,
        WIDE=wide,
        PDL=pdl,
        **launch_options(ATTENTION_WARPS, pdl),
    )
    merge(out, peaks, norms, totals, v_scale, pdl, NODE // split.entries)


_operator = opaque(
    "sparse_gqa(Tensor(a!) out, Tensor q, Tensor k_cache, Tensor v_cache, Tensor page_ids, Tensor page_table, "
    "Tensor row_requests, Tensor kv_lens, Tensor qo_offsets, float scale, Tensor(b!) peaks, Tensor(c!) norms, "
    "Tensor(d!) totals, float k_scale, float v_scale, bool pdl) -> ()",
    _sparse_gqa,
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
    *,
    partials: Partials,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    pdl: bool = False,
) -> None:
    """``out[r]`` is the attention of row r over its selected pages; exactly zero if it sees no token.

    Two launches. The first, grid (B, Hkv, rows + parts), makes partial softmaxes in fp32: those of the pages that a row
    sees in full, each page by itself or folded over four entries of its list, and in the last part the page that it sees
    in part. A program walks the union of its rows' pages in ascending order and reads each page once; a row takes a page
    in only if its own list has it. The second folds what is left, four entries a node, and adds the nodes in one fixed
    tree. A row's bits follow from its own list: neither `split_of` nor the rows beside it change one.

    Tokens that a row does not see and pages that it did not select cannot reach it, NaN or not.

    Args:
        out: [T, Hq, D] dtype, device; written in place.
        q: [T, Hq, D] any float dtype, device; converted to the caches' dtype (bf16 for fp8 caches).
        k_cache, v_cache: [pages, Hkv, P, D] bf16, fp16, fp32 or fp8 e4m3, device.
        page_ids: [T, Hkv, K] int32, device: ascending logical pages, then -1.
        page_table: [B, W] int32, device, contiguous; entries that no id names may hold anything.
        row_requests: [T] int64, device: the row's request, which must be r // Q; not read.
        kv_lens: [B] int32, device, tokens.
        qo_offsets: [T] int32, device: position of the row; negative if it has none. Ascending within a request.
        scale: what logits are multiplied with.
        partials: workspace for `sparse_parts` (K) parts at most; its contents need not survive.
        k_scale, v_scale: what stored keys and values are multiplied with.
        pdl: launch as programmatic dependents of the kernels before.

    Read live: queries, caches, ids, table, lengths, offsets. Frozen at capture: all shapes and the scales.

    Raises:
        ShapeMismatch: the workspace is not for these shapes.
    """
    rows, kv_heads, top_k = page_ids.shape
    batch = page_table.shape[0]
    split = split_of(batch, rows // batch, kv_heads, q.shape[1] // kv_heads)
    workspace = partials.cut(rows, sparse_parts(top_k, split.entries))
    _operator(
        out,
        q,
        k_cache,
        v_cache,
        page_ids,
        page_table,
        row_requests,
        kv_lens,
        qo_offsets,
        scale,
        *workspace,
        k_scale,
        v_scale,
        pdl,
    )
