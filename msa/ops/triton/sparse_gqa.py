"""Sparse attention: the rows of a request walk the union of their pages, each adding its own pages only."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from msa.ops.triton.launch import check_aligned, launch_options, needs_wide, opaque, power_of_two
from msa.ops.triton.merge import merge, store_partial
from msa.ops.triton.partials import Partials, check_partials
from msa.ops.triton.tile import as_operand, dependency_wait, load_page, load_queries, page_address, page_step

# Entries of a page list per part. A part of a row holds the same pages whatever the batch, so its bits stay the same.
PAGES_PER_PART = 4
MOST_ROWS = 8
_NO_PAGE = tl.constexpr(2**31 - 1)


def sparse_parts(top_k: int) -> int:
    """Parts S that a row's attention is split into: one per four entries of its list, and one for its partial page."""
    return -(-top_k // PAGES_PER_PART) + 1


@triton.jit
def _distinct(ids, N: tl.constexpr):
    """How many different pages a list of lists names."""
    flat = tl.reshape(ids, [N])
    index = tl.arange(0, N)
    earlier = (flat[:, None] == flat[None, :]) & (index[None, :] < index[:, None])
    repeated = tl.max(earlier.to(tl.int32), axis=1)
    return tl.sum(((repeated == 0) & (flat != _NO_PAGE)).to(tl.int32))


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
    end = tl.load(qo_offsets + base + token, mask=token < Q, other=-1) + 1
    end = tl.minimum(end, length)
    entry = ((base + token)[:, None] * KV_HEADS + kv_head) * K + slot[None, :]
    ids = tl.load(page_ids + entry, mask=(token < Q)[:, None] & (slot < K)[None, :], other=-1)
    whole = (ids >= 0) & (ids < width) & ((ids + 1) * P <= end[:, None])
    ids = tl.where(whole, ids, _NO_PAGE)
    physical = tl.load(table + ids, mask=whole, other=0)
    physical = tl.minimum(tl.maximum(physical, 0), pages - 1)

    line = tl.arange(0, ROWS * BLOCK_G)
    row, head = base + first + line // BLOCK_G, kv_head * G + line % BLOCK_G
    real = (first + line // BLOCK_G < Q) & (line % BLOCK_G < G)
    queries = as_operand(load_queries(q, row, head, real, KV_HEADS * G, D, BLOCK_D), k_cache)
    peak = tl.full([ROWS * BLOCK_G], float("-inf"), tl.float32)
    norm = tl.zeros([ROWS * BLOCK_G], tl.float32)
    total = tl.zeros([ROWS * BLOCK_G, BLOCK_D], tl.float32)
    everything = tl.full([P], True, tl.int1)
    page = tl.min(ids)
    for _ in tl.range(0, _distinct(ids, ROWS * STEP), num_stages=STAGES):
        place = tl.max(tl.where(ids == page, physical, 0))
        address = page_address(place, KV_HEADS, kv_head, P, D, BLOCK_D)
        keys = load_page(k_cache, address, everything, D, BLOCK_D, False)
        values = load_page(v_cache, address, everything, D, BLOCK_D, False)
        member = tl.max((ids == page).to(tl.int32), axis=1)
        mine = tl.reshape(tl.broadcast_to(member[:, None], (ROWS, BLOCK_G)), [ROWS * BLOCK_G]) > 0
        new_peak, new_norm, new_total = page_step(
            peak, norm, total, queries, keys, values, everything, scale, False, WIDE
        )
        # Choosing, not weighing with zero: a page with NaN must not reach a row that did not select it.
        peak = tl.where(mine, new_peak, peak)
        norm = tl.where(mine, new_norm, norm)
        total = tl.where(mine[:, None], new_total, total)
        page = tl.min(tl.where(ids > page, ids, _NO_PAGE))
    place = (row * (KV_HEADS * G) + head) * PARTS + part
    store_partial(peaks, norms, totals, place, peak, norm, total, real, D, BLOCK_D)


@triton.jit
def _partial_page(
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
    row,
    kv_head,
    width,
    pages,
    scale,
    KV_HEADS: tl.constexpr,
    G: tl.constexpr,
    M: tl.constexpr,
    K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The last part of one row: the page that it sees in part. What comes behind the row is masked at load."""
    end = tl.minimum(tl.load(qo_offsets + row) + 1, length)
    page = tl.maximum(end, 0) // P
    slot = tl.arange(0, BLOCK_K)
    ids = tl.load(page_ids + (row * KV_HEADS + kv_head) * K + slot, mask=slot < K, other=-1)
    listed = tl.max((ids == page).to(tl.int32))
    rows, head = row + tl.zeros([M], tl.int64), kv_head * G + tl.arange(0, M)
    real = tl.arange(0, M) < G
    peak = tl.full([M], float("-inf"), tl.float32)
    norm = tl.zeros([M], tl.float32)
    total = tl.zeros([M, BLOCK_D], tl.float32)
    if (listed > 0) & (page * P < end) & (page < width):
        queries = as_operand(load_queries(q, rows, head, real, KV_HEADS * G, D, BLOCK_D), k_cache)
        physical = tl.minimum(tl.maximum(tl.load(table + page), 0), pages - 1)
        address = page_address(physical, KV_HEADS, kv_head, P, D, BLOCK_D)
        seen = page * P + tl.arange(0, P) < end
        keys = load_page(k_cache, address, seen, D, BLOCK_D, True)
        values = load_page(v_cache, address, seen, D, BLOCK_D, True)
        peak, norm, total = page_step(peak, norm, total, queries, keys, values, seen, scale, True, WIDE)
    place = (rows * (KV_HEADS * G) + head) * PARTS + (PARTS - 1)
    store_partial(peaks, norms, totals, place, peak, norm, total, real, D, BLOCK_D)


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
    M_PARTIAL: tl.constexpr,
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
    part = tl.program_id(2)
    length = tl.load(kv_lens + request)
    base = request.to(tl.int64) * Q
    table = page_table + request.to(tl.int64) * width
    token = first + part - (PARTS - 1)
    if part < PARTS - 1:
        _whole_pages(
            peaks, norms, totals, q, k_cache, v_cache, page_ids, table, length, qo_offsets, base, first, kv_head, part,
            width, pages, scale, Q, ROWS, KV_HEADS, G, BLOCK_G, K, STEP, PARTS, P, D, BLOCK_D, STAGES, WIDE,
        )  # fmt: skip
    elif token < Q:
        _partial_page(
            peaks, norms, totals, q, k_cache, v_cache, page_ids, table, length, qo_offsets, base + token, kv_head,
            width, pages, scale, KV_HEADS, G, M_PARTIAL, K, BLOCK_K, PARTS, P, D, BLOCK_D, WIDE,
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
    parts = sparse_parts(top_k)
    check_partials(peaks, norms, totals, (rows, kv_heads * group, parts, dim))
    together = min(power_of_two(qo_len), MOST_ROWS)
    blocks = -(-qo_len // together)
    lines = power_of_two(together * power_of_two(group), 16)
    _attend[(batch * blocks, kv_heads, parts - 1 + together)](
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
        ROWS=together,
        BLOCKS=blocks,
        KV_HEADS=kv_heads,
        G=group,
        BLOCK_G=lines // together,
        M_PARTIAL=power_of_two(group, 16),
        K=top_k,
        BLOCK_K=power_of_two(top_k),
        STEP=PAGES_PER_PART,
        PARTS=parts,
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

    Two launches. The first, grid (B, Hkv, parts + rows), makes partial softmaxes in fp32: part s of a row holds those
    of the entries 4s to 4s + 3 of its list whose page it sees in full, and the last part the page that it sees in
    part. A program walks the union of its rows' pages in ascending order and reads each page once; a row takes a page
    in only if its own list has it. The second adds the parts in one fixed tree. What a part holds follows from the row's own
    list, so a request's bits depend on nothing else.

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
        partials: workspace for `sparse_parts` (K) parts; its contents need not survive.
        k_scale, v_scale: what stored keys and values are multiplied with.
        pdl: launch as programmatic dependents of the kernels before.

    Read live: queries, caches, ids, table, lengths, offsets. Frozen at capture: all shapes and the scales.

    Raises:
        ShapeMismatch: the workspace is not for these shapes.
    """
    workspace = partials.cut(q.shape[0], sparse_parts(page_ids.shape[2]))
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
