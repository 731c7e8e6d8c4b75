"""Sparse attention: every row walks its own pages, a page's softmax at a time."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from msa.ops.triton import sparse_teams
from msa.ops.triton.last_page import last_page, row_end
from msa.ops.triton.launch import (
    UNITS,
    check_aligned,
    interpreted,
    launch_options,
    needs_wide,
    opaque,
    power_of_two,
)
from msa.ops.triton.merge import merge, store_partial, store_result
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
    norm_columns,
    nothing,
    page_softmax,
    physical_page,
)

# Entries of a page list whose softmaxes are folded one by one to a node, before the nodes are: what makes a row's bits.
NODE = 4
# Registers of a thread with which three programs fit into a multiprocessor.
THREE_FIT = 168
_NO_PAGE = tl.constexpr(2**63 - 1)
_PAGE = tl.constexpr(2**32)


def entries_of(rows: int, kv_heads: int, top_k: int) -> int:
    """Entries of a page list that one program walks: 1, `NODE`, or all of them. No bit depends on it.

    The fewest with which the programs of T rows and Hkv heads all run at one time, two on a multiprocessor: the pages of a
    program wait for each other, and programs too many for the GPU do as well.

    In Triton's interpreter always a node: a function of numpy has other bits in another place of a vector.
    """
    if interpreted(_attend):
        return min(NODE, top_k)
    lists = rows * kv_heads
    for entries in (1, NODE):
        if entries < top_k and lists * -(-top_k // entries) <= 2 * UNITS:
            return entries
    return top_k


def _stages(programs: int, entries: int, size: int) -> int:
    """How far a walk looks ahead (``num_stages``), for caches of numbers of ``size`` bytes.

    One more than the pages that shared memory then holds at a time; 1 brings a page through registers.
    """
    if entries == 1 or size > 2:
        return 1
    # Two pages where they leave room for another program, or there is none.
    return 3 if size == 1 or programs <= UNITS else 2


def sparse_parts(entries: int, top_k: int) -> int:
    """Parts S of a row's attention where a program walks ``entries`` of its list: none where it walks the whole."""
    return -(-top_k // entries) if entries < top_k else 0


class _Division(NamedTuple):
    """How the work of a call is shared out.

    Args:
        entries: of a list that a program walks.
        parts: S, what the workspace holds of each row.
        teams: how rows that select alike share pages; None where each goes by itself.
    """

    entries: int
    parts: int
    teams: sparse_teams.Plan | None


def _division(q: torch.Tensor, k_cache: torch.Tensor, page_ids: torch.Tensor, qo_len: int) -> _Division:
    """Teams where programs walk whole lists and there is a kernel for it on this GPU and of these shapes."""
    rows, kv_heads, top_k = page_ids.shape
    entries = entries_of(rows, kv_heads, top_k)
    if entries < top_k or not sparse_teams.takes(q, k_cache, page_ids, qo_len, NODE):
        return _Division(entries, sparse_parts(entries, top_k), None)
    teams = sparse_teams.Plan.of(rows, kv_heads)
    return _Division(entries, sparse_parts(top_k // teams.walkers, top_k), teams)


@triton.jit
def _emptied(peak, norm, total, full):
    """The softmax, and none at all where ``full``."""
    return tl.where(full, float("-inf"), peak), tl.where(full, 0.0, norm), tl.where(full, 0.0, total)


@triton.jit
def _walk(
    operand,
    unit,
    k_cache,
    v_cache,
    page_ids,
    table,
    end,
    listed,
    slot,
    real,
    kv_head,
    width,
    pages,
    KV_HEADS: tl.constexpr,
    LINES: tl.constexpr,
    K: tl.constexpr,
    ENTRIES: tl.constexpr,
    NODE: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
    WIDE: tl.constexpr,
):
    """The softmax of a row over ENTRIES of its list from ``slot`` on: peak [LINES], norm [LINES, C], total [LINES, BLOCK_D].

    Pages that the row sees in full are walked in ascending order, the next ones on their way to shared memory while one is
    computed. The page that it sees in part, which is the last one that it sees, comes behind them.
    """
    entry = slot + tl.arange(0, ENTRIES)
    ids = tl.load(page_ids + listed + entry, mask=entry < K, other=-1)
    # Places are read before it is known whether the row sees them: what is outside the table is not.
    physical = physical_page(table, ids, (ids >= 0) & (ids < width), pages)
    whole = (ids >= 0) & (ids < width) & ((ids + 1) * P <= end)
    walk = tl.where(whole, ids.to(tl.int64) * _PAGE + physical, _NO_PAGE)
    # A list that names a page twice, which none may, must not lead the walk outside the cache.
    earlier = (walk[:, None] == walk[None, :]) & (entry[None, :] < entry[:, None])
    count = tl.sum((whole & (tl.max(earlier.to(tl.int32), axis=1) == 0)).to(tl.int32))
    key = tl.min(walk)
    peak, norm, total = nothing(LINES, norm_columns(LINES), BLOCK_D)
    if ENTRIES > NODE:
        sum_peak, sum_norm, sum_total = nothing(LINES, norm_columns(LINES), BLOCK_D)
    for step in tl.range(0, count, num_stages=STAGES):
        keys = load_page(k_cache, key % _PAGE, KV_HEADS, kv_head, True, P, D, BLOCK_D, False)
        values = load_values(v_cache, key % _PAGE, KV_HEADS, kv_head, True, P, D, BLOCK_D, False)
        key = tl.min(tl.where(walk > key, walk, _NO_PAGE))
        more_peak, more_norm, more_total = page_softmax(operand, keys, values, True, unit, False, False, WIDE)
        peak, norm, total = fold(peak, norm, total, more_peak, more_norm, more_total, real)
        # Choosing instead of branching: the compiler looks ahead past no branch.
        if ENTRIES > NODE:
            full = step % NODE == NODE - 1
            sum_peak, sum_norm, sum_total = fold(sum_peak, sum_norm, sum_total, peak, norm, total, real & full)
            peak, norm, total = _emptied(peak, norm, total, full)
    if tl.max(((ids >= 0) & (ids == tl.maximum(end, 0) // P)).to(tl.int32)) > 0:
        more_peak, more_norm, more_total = last_page(
            operand, unit, k_cache, v_cache, table, end, real, kv_head, width, pages,
            KV_HEADS, LINES, P, D, BLOCK_D, WIDE,
        )  # fmt: skip
        peak, norm, total = fold(peak, norm, total, more_peak, more_norm, more_total, real)
    if ENTRIES > NODE:
        peak, norm, total = fold(sum_peak, sum_norm, sum_total, peak, norm, total, real)
    return peak, norm, total


@triton.jit(do_not_specialize=["page_table", "kv_lens", "qo_offsets", "width", "pages", "scale", "value_scale"])
def _attend(
    out,
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
    value_scale,
    Q: tl.constexpr,
    KV_HEADS: tl.constexpr,
    G: tl.constexpr,
    LINES: tl.constexpr,
    K: tl.constexpr,
    ENTRIES: tl.constexpr,
    NODE: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
    WIDE: tl.constexpr,
    PDL: tl.constexpr,
):
    dependency_wait(PDL)
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    part = tl.program_id(2)
    request = row // Q
    line = tl.arange(0, LINES)
    real = line < G
    head = row * (KV_HEADS * G) + kv_head * G + line
    queries = load_queries(q, head, real, D, BLOCK_D)
    end = row_end(qo_offsets, tl.load(kv_lens + request), row, 0, Q)
    operand, unit = as_operand(queries, k_cache)
    peak, norm, total = _walk(
        operand, scale * unit, k_cache, v_cache, page_ids, page_table + request * width, end,
        (row * KV_HEADS + kv_head) * K, part * ENTRIES, real, kv_head, width, pages,
        KV_HEADS, LINES, K, ENTRIES, NODE, P, D, BLOCK_D, STAGES, WIDE,
    )  # fmt: skip
    if PARTS == 0:
        store_result(out, head, norm, total, value_scale, real, columns(v_cache, BLOCK_D), D)
    else:
        place = head * PARTS + part
        store_partial(peaks, norms, totals, place, peak, norm, total, real, columns(v_cache, BLOCK_D), D)


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
    entries, parts, teams = _division(q, k_cache, page_ids, qo_len)
    check_partials(peaks, norms, totals, (rows, kv_heads * group, parts, dim))
    scale = scale * k_scale * math.log2(math.e)
    if teams is not None:
        sparse_teams.attend_teams(
            out, q, k_cache, v_cache, page_ids, page_table, kv_lens, qo_offsets, scale, peaks, norms, totals, v_scale, pdl,
            NODE, teams,
        )  # fmt: skip
        if parts:
            merge(out, peaks, norms, totals, v_scale, pdl, node=1, group=group)
        return
    wide = needs_wide(_attend, k_cache.dtype)
    _attend[(rows, kv_heads, max(parts, 1))](
        out,
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
        v_scale,
        Q=qo_len,
        KV_HEADS=kv_heads,
        G=group,
        LINES=power_of_two(group, LEAST_LINES),
        K=top_k,
        ENTRIES=power_of_two(entries),
        NODE=NODE,
        PARTS=parts,
        P=page_size,
        D=dim,
        BLOCK_D=power_of_two(dim, 16),
        STAGES=1 if wide else _stages(rows * kv_heads * max(parts, 1), entries, k_cache.itemsize),
        WIDE=wide,
        PDL=pdl,
        **launch_options(ATTENTION_WARPS, pdl, **({"maxnreg": THREE_FIT} if entries == 1 and not wide else {})),
    )
    if parts:
        merge(out, peaks, norms, totals, v_scale, pdl, node=NODE // entries)


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

    One launch or two. The first, grid (T, Hkv, parts), makes a softmax in fp32 of every page and folds them: four entries of
    a list to a node, and the nodes in order. A program walks a whole list, or `entries_of` it, and
    stores what its part comes to; then the second launch folds the rest in the same order. So a row's bits follow from its
    own list: neither how the work is split nor the rows beside it change one.

    Where programs walk whole lists and `sparse_teams.takes` says so, four rows of a request whose lists are alike read their
    pages together: the device sees in each replay whether they are.

    Tokens that a row does not see and pages that it did not select cannot reach it, NaN or not.

    Args:
        out: [T, Hq, D] dtype, device; written in place.
        q: [T, Hq, D] any float dtype, device; converted to the caches' dtype (fp16 for fp8 caches).
        k_cache, v_cache: [pages, Hkv, P, D] bf16, fp16, fp32 or fp8 e4m3, device.
        page_ids: [T, Hkv, K] int32, device: ascending logical pages, then -1.
        page_table: [B, W] int32, device, contiguous; entries that no id names may hold anything.
        row_requests: [T] int64, device: the row's request, which must be r // Q; not read.
        kv_lens: [B] int32, device, tokens.
        qo_offsets: [T] int32, device: position of the row; negative if it has none.
        scale: what logits are multiplied with.
        partials: workspace for `sparse_parts` (1, K) parts at most; its contents need not survive.
        k_scale, v_scale: what stored keys and values are multiplied with.
        pdl: launch as programmatic dependents of the kernels before.

    Read live: queries, caches, ids, table, lengths, offsets. Frozen at capture: all shapes and the scales.

    Raises:
        ShapeMismatch: the workspace is not for these shapes.
    """
    rows = page_ids.shape[0]
    workspace = partials.cut(rows, _division(q, k_cache, page_ids, rows // page_table.shape[0]).parts)
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
