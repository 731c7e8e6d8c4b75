"""Sparse attention: the rows of a request walk the union of their pages, each adding its own pages only."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from msa.ops.triton.last_page import last_page, row_end
from msa.ops.triton.launch import check_aligned, interpreted, launch_options, needs_wide, opaque, power_of_two
from msa.ops.triton.merge import merge, store_empty, store_partial
from msa.ops.triton.partials import Partials, check_partials
from msa.ops.triton.tile import (
    ATTENTION_WARPS,
    TILE_LINES,
    as_operand,
    block_address,
    block_softmax,
    blocks_per_page,
    dependency_wait,
    fold,
    load_block,
    load_queries,
    nothing,
    physical_page,
)

# Entries of a page list whose blocks are folded one by one before the merge: what makes a row's bits.
NODE = 4
# Tiles of single rows up to which a program takes one block, and tiles from which rows walk together.
FEW_TILES = 16
MANY_TILES = 32
STAGES = 3
# Programs that an H200 runs at a time when each has all the registers it likes; of more, three fit where two did, which is
# worth a few spilled registers.
AT_ONCE = 264
TIGHT_REGISTERS = 168
_NO_PAGE = tl.constexpr(2**63 - 1)
_PAGE = tl.constexpr(2**32)


class Split(NamedTuple):
    """How the work is split, which no bit depends on.

    Attributes:
        rows: query rows of a request that walk their pages together.
        blocks: blocks of each of their lists that a program walks: 1, or those of `NODE` entries.
    """

    rows: int
    blocks: int


def split_of(batch: int, qo_len: int, kv_heads: int, group: int, page_size: int) -> Split:
    """The split for B requests of Q rows and Hkv heads of G queries each.

    Few requests: a program per block, so that none waits for a second one. Many: programs that walk, which store fewer
    partial softmaxes and read a page once for all rows that selected it. In Triton's interpreter there is one split: a
    product of numpy has other bits at another place of the tile.
    """
    together = min(power_of_two(qo_len), TILE_LINES // power_of_two(group))
    node = NODE * blocks_per_page(page_size)
    if interpreted(_attend):
        return Split(together, node)
    if batch * qo_len * kv_heads <= FEW_TILES:
        return Split(1, 1)
    return Split(together if batch * -(-qo_len // together) * kv_heads >= MANY_TILES else 1, node)


def sparse_parts(top_k: int, page_size: int, blocks: int = 1) -> int:
    """Parts S that a row's attention is split into: one per ``blocks`` of its list, and those of its partial page."""
    each = blocks_per_page(page_size)
    return -(-top_k * each // blocks) + each


@triton.jit
def _distinct(keys, N: tl.constexpr):
    """How many different pages keys [N] name."""
    index = tl.arange(0, N)
    earlier = (keys[:, None] == keys[None, :]) & (index[None, :] < index[:, None])
    repeated = tl.max(earlier.to(tl.int32), axis=1)
    return tl.sum(((repeated == 0) & (keys != _NO_PAGE)).to(tl.int32))


@triton.jit
def _whole(ids, width, end, P: tl.constexpr):
    """Which pages are there and seen in full by a row that sees ``end`` tokens."""
    return (ids >= 0) & (ids < width) & ((ids + 1) * P <= end)


@triton.jit
def _own_page(page_ids, row, kv_head, slot, end, real, width, KV_HEADS: tl.constexpr, K: tl.constexpr, P: tl.constexpr):
    """Entry ``slot`` of each line's list [M] int32, -1 where its row does not see that page in full."""
    there = tl.where(slot < K, real, False)
    ids = tl.load(page_ids + (row * KV_HEADS + kv_head) * K + slot, mask=there, other=-1)
    return tl.where(_whole(ids, width, end, P), ids, -1)


@triton.jit
def _walk(
    peaks,
    norms,
    totals,
    queries,
    k_cache,
    v_cache,
    page_ids,
    table,
    qo_offsets,
    length,
    place,
    base,
    first,
    row,
    ends,
    real,
    kv_head,
    part,
    width,
    pages,
    scale,
    Q: tl.constexpr,
    ROWS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    LINES: tl.constexpr,
    K: tl.constexpr,
    STEP: tl.constexpr,
    EACH: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The blocks ``part * STEP`` and on of the lists of ROWS rows, as far as a row sees their pages in full.

    EACH blocks are a page. The next blocks are on their way to shared memory while one is computed.
    """
    entries: tl.constexpr = STEP // EACH if STEP > EACH else 1
    halves: tl.constexpr = STEP // entries
    slot = part * STEP // EACH
    half = part * STEP % EACH
    if ROWS * STEP == 1:
        ids = tl.load(page_ids + ((base + first) * KV_HEADS + kv_head) * K + slot)
        # Its place is read before it is known whether the row sees it: what is outside the table is not.
        physical = physical_page(table, ids, (ids >= 0) & (ids < width), pages)
        end = row_end(qo_offsets, length, base + first, first, Q, True)
        count = tl.where(_whole(ids, width, end, P), 1, 0)
    else:
        token = first + tl.arange(0, ROWS)
        entry = slot + tl.arange(0, entries)
        list_ends = row_end(qo_offsets, length, base + token, token, Q, token < Q)
        listed = ((base + token)[:, None] * KV_HEADS + kv_head) * K + entry[None, :]
        ids = tl.load(page_ids + listed, mask=(token < Q)[:, None] & (entry < K)[None, :], other=-1)
        physical = physical_page(table, ids, (ids >= 0) & (ids < width), pages)
        whole = _whole(ids, width, list_ends[:, None], P)
        walk = tl.reshape(tl.where(whole, ids.to(tl.int64) * _PAGE + physical, _NO_PAGE), [ROWS * entries])
        own_a = _own_page(page_ids, row, kv_head, slot, ends, real, width, KV_HEADS, K, P)
        if entries > 1:
            own_b = _own_page(page_ids, row, kv_head, slot + 1, ends, real, width, KV_HEADS, K, P)
            own_c = _own_page(page_ids, row, kv_head, slot + 2, ends, real, width, KV_HEADS, K, P)
            own_d = _own_page(page_ids, row, kv_head, slot + 3, ends, real, width, KV_HEADS, K, P)
        count = _distinct(walk, ROWS * entries)
        key = tl.min(walk)
    if count > 0:
        operand, unit = as_operand(queries, k_cache, 1)
        if ROWS * STEP == 1:
            address = block_address(physical, KV_HEADS, kv_head, half * N, P, N, D, BLOCK_D)
            keys = load_block(k_cache, address, True, D, BLOCK_D, False)
            values = load_block(v_cache, address, True, D, BLOCK_D, False)
            peak, norm, total = block_softmax(operand, keys, values, True, scale * unit, False, False, WIDE)
        else:
            peak, norm, total = nothing(LINES, BLOCK_D)
            here = half
            for step in tl.range(0, count * halves, num_stages=STAGES):
                page = (key // _PAGE).to(tl.int32)
                mine = own_a == page
                if entries > 1:
                    mine = mine | (own_b == page) | (own_c == page) | (own_d == page)
                address = block_address(key % _PAGE, KV_HEADS, kv_head, here * N, P, N, D, BLOCK_D)
                keys = load_block(k_cache, address, True, D, BLOCK_D, False)
                values = load_block(v_cache, address, True, D, BLOCK_D, False)
                # Choosing instead of branching: the compiler looks ahead past no branch.
                key = tl.where(step % halves == halves - 1, tl.min(tl.where(walk > key, walk, _NO_PAGE)), key)
                here = half + (step + 1) % halves
                more_peak, more_norm, more_total = block_softmax(
                    operand, keys, values, True, scale * unit, False, False, WIDE
                )
                peak, norm, total = fold(peak, norm, total, more_peak, more_norm, more_total, mine)
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
    TILES: tl.constexpr,
    KV_HEADS: tl.constexpr,
    G: tl.constexpr,
    BLOCK_G: tl.constexpr,
    LINES: tl.constexpr,
    K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STEP: tl.constexpr,
    EACH: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    N: tl.constexpr,
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
    # The last parts come first: they take longest.
    part = tl.program_id(2) - EACH
    base = request.to(tl.int64) * Q
    table = page_table + request.to(tl.int64) * width
    line = tl.arange(0, LINES)
    token = first + line // BLOCK_G
    row, head = base + token, kv_head * G + line % BLOCK_G
    real = (line < ROWS * BLOCK_G) & (token < Q) & (line % BLOCK_G < G)
    queries = load_queries(q, row, head, real, KV_HEADS * G, D, BLOCK_D)
    length = tl.load(kv_lens + request)
    ends = row_end(qo_offsets, length, row, token, Q, real)
    place = (row * (KV_HEADS * G) + head) * PARTS + tl.where(part >= 0, part, PARTS + part)
    if part >= 0:
        _walk(
            peaks, norms, totals, queries, k_cache, v_cache, page_ids, table, qo_offsets, length, place, base, first,
            row, ends, real, kv_head, part, width, pages, scale,
            Q, ROWS, KV_HEADS, LINES, K, STEP, EACH, P, N, D, BLOCK_D, STAGES, WIDE,
        )  # fmt: skip
    else:
        slot = tl.arange(0, BLOCK_K)
        listed = ((row * KV_HEADS + kv_head) * K)[:, None] + slot[None, :]
        ids = tl.load(page_ids + listed, mask=real[:, None] & (slot < K)[None, :], other=-1)
        wanted = tl.max((ids == (tl.maximum(ends, 0) // P)[:, None]).to(tl.int32), axis=1) > 0
        last_page(
            peaks, norms, totals, queries, k_cache, v_cache, table, qo_offsets, length, place, base, first, ends,
            wanted, real, kv_head, part + EACH, width, pages, scale,
            Q, ROWS, KV_HEADS, BLOCK_G, LINES, P, N, D, BLOCK_D, WIDE,
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
    split, each = split_of(batch, qo_len, kv_heads, group, page_size), blocks_per_page(page_size)
    parts = sparse_parts(top_k, page_size, split.blocks)
    check_partials(peaks, norms, totals, (rows, kv_heads * group, parts, dim))
    tiles = -(-qo_len // split.rows)
    wide = needs_wide(_attend, k_cache.dtype)
    grid = (batch * tiles, kv_heads, parts)
    tight = split == (1, 1) and math.prod(grid) > AT_ONCE
    _attend[grid](
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
        TILES=tiles,
        KV_HEADS=kv_heads,
        G=group,
        BLOCK_G=power_of_two(group),
        LINES=TILE_LINES,
        K=top_k,
        BLOCK_K=power_of_two(top_k),
        STEP=split.blocks,
        EACH=each,
        PARTS=parts,
        P=page_size,
        N=page_size // each,
        D=dim,
        BLOCK_D=power_of_two(dim, 16),
        # One block has none to wait beside it, and blocks of fp32 fill the shared memory.
        STAGES=1 if wide or split == (1, 1) else STAGES,
        WIDE=wide,
        PDL=pdl,
        **launch_options(ATTENTION_WARPS, pdl, **({"maxnreg": TIGHT_REGISTERS} if tight else {})),
    )
    merge(out, peaks, norms, totals, v_scale, pdl, inner=NODE * each // split.blocks, last=each)


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

    Two launches. The first, grid (B * tiles of rows, Hkv, parts), makes partial softmaxes in fp32 of blocks of 64 tokens:
    those of the pages that a row sees in full, each by itself or folded over four entries of its list, and in the last
    parts those of the page that it sees in part. A program walks the union of its rows' pages in ascending order and reads
    each page once; a row takes a page in only if its own list has it. The second folds what is left, four entries a node,
    and adds the nodes in one fixed tree. A row's bits follow from its own list: neither `split_of` nor the rows beside it
    change one.

    Tokens that a row does not see and pages that it did not select cannot reach it, NaN or not.

    Args:
        out: [T, Hq, D] dtype, device; written in place.
        q: [T, Hq, D] any float dtype, device; converted to the caches' dtype (fp16 for fp8 caches).
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
    page_size = k_cache.shape[2]
    split = split_of(batch, rows // batch, kv_heads, q.shape[1] // kv_heads, page_size)
    workspace = partials.cut(rows, sparse_parts(top_k, page_size, split.blocks))
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
