"""Sparse attention on Hopper, where four rows of a request that select the same pages walk them together."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from msa.ops.triton.launch import UNITS, launch_options
from msa.ops.triton.merge import store_answered, store_partial, store_result
from msa.ops.triton.page_stream import begin, new_barriers, open_stream
from msa.ops.triton.team_walk import load_lines, walk_alone, walk_together
from msa.ops.triton.tile import ATTENTION_WARPS, LEAST_LINES, dependency_wait

# Rows of a team, as many as make a tile of 64 lines; numbers of a page and of a head, as many as a product's instruction takes.
TEAM = 4
SIDE = 128
# Barriers, of eight bytes each, with which shared memory holds one program of a multiprocessor.
EXCLUSIVE = 12288
# Numbers that an address of the kernel can name.
_MOST = 2**31


@dataclass(frozen=True)
class Plan:
    """How the programs of a launch share the work. No bit depends on it.

    Args:
        walkers: programs that share the list of a team that walks together, the whole or a node each.
        team_ring: tiles that a team keeps on their way. One that walks its whole list keeps a sum in shared memory as well.
        row_ring: tiles that a row keeps on their way where it walks alone.
        room: barriers that shared memory is taken for, so many that no program shares a multiprocessor while others are
            idle, or as many as the rings have tiles.
    """

    walkers: int
    team_ring: int
    row_ring: int
    room: int

    @classmethod
    def of(cls, rows: int, kv_heads: int) -> Plan:
        """For T rows and Hkv heads: whole lists for a team where teams fill the GPU, a node for each program elsewhere.

        A row alone keeps three tiles on their way where its program has a multiprocessor to itself; two are faster where
        programs share one.
        """
        if rows // TEAM * kv_heads > UNITS:
            return cls(1, 2, 2, 2)
        return cls(TEAM, 3, 3, EXCLUSIVE) if rows * kv_heads <= UNITS else cls(TEAM, 3, 2, 3)


@functools.cache
def _hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9


def takes(q: torch.Tensor, k_cache: torch.Tensor, page_ids: torch.Tensor, qo_len: int, node: int) -> bool:
    """Whether the kernel is for this GPU and these shapes: 16-bit caches of MiniMax-M3's pages, whole teams, T and Hkv any.

    Args:
        q, k_cache, page_ids: as `msa.ops.triton.sparse_gqa` takes them.
        qo_len: Q.
        node: entries of a node.
    """
    rows, kv_heads, top_k = page_ids.shape
    return (
        k_cache.dtype in (torch.bfloat16, torch.float16)
        and tuple(k_cache.shape[2:]) == (SIDE, SIDE)
        and qo_len % TEAM == 0
        and q.shape[1] // kv_heads <= LEAST_LINES
        and top_k == TEAM * node
        and max(q.numel(), k_cache.numel() // SIDE) < _MOST
        and _hopper(q.device)
    )


@gluon.jit
def _bits(full, some, entry, K: gl.constexpr):
    """What of a list is walked, a bit for each entry: [K] int32 says of which one sees the whole, and of which anything.

    Returns:
        int32: entries of which one sees the whole, before the first one of which one sees a part; that one; and all such.
    """
    bits = gl.sum((full << entry) | ((some & ~full) << (entry + K)), axis=0)
    parts = (bits >> K) & ((1 << K) - 1)
    # A page that is seen in part is the last one, in a list that ascends.
    tail_bit = parts & -parts
    return bits & ((1 << K) - 1) & (tail_bit - 1), tail_bit, parts


@gluon.jit
def _places(page_table, ids, request, width, pages):
    """Where pages of a request lie, inside the cache whatever the table holds."""
    places = gl.load(page_table + request.to(gl.int64) * width + ids, mask=(ids >= 0) & (ids < width), other=0)
    return gl.minimum(gl.maximum(places, 0), pages - 1)


@gluon.jit(do_not_specialize=["width", "pages", "scale", "value_scale"])
def _attend_teams(
    out,
    peaks,
    norms,
    totals,
    q,
    keys,
    values,
    page_ids,
    page_table,
    kv_lens,
    qo_offsets,
    width,
    pages,
    scale,
    value_scale,
    Q: gl.constexpr,
    KV_HEADS: gl.constexpr,
    G: gl.constexpr,
    EACH: gl.constexpr,
    K: gl.constexpr,
    NODE: gl.constexpr,
    TEAM: gl.constexpr,
    WALKERS: gl.constexpr,
    TEAM_RING: gl.constexpr,
    ROW_RING: gl.constexpr,
    ROOM: gl.constexpr,
    P: gl.constexpr,
    D: gl.constexpr,
    PDL: gl.constexpr,
):
    HEADS: gl.constexpr = KV_HEADS * G
    NODES: gl.constexpr = K // NODE
    SHARE: gl.constexpr = K // WALKERS
    LISTS: gl.constexpr = gl.BlockedLayout([TEAM, 1], [1, 32], [1, gl.num_warps()], [1, 0])
    ready = new_barriers(max(TEAM_RING, ROW_RING), ROOM)
    dependency_wait(PDL)
    row = gl.program_id(0)
    kv_head = gl.program_id(1)
    request = row // Q
    first = row // TEAM * TEAM
    mate = gl.arange(0, TEAM, gl.SliceLayout(1, LISTS))
    entry = gl.arange(0, K, gl.SliceLayout(0, LISTS))
    lists = gl.load(page_ids + ((first + mate) * KV_HEADS + kv_head)[:, None] * K + entry[None, :])
    ends = gl.minimum(gl.load(qo_offsets + first + mate) + 1, gl.load(kv_lens + request))
    ids = gl.max(gl.where((mate == row - first)[:, None], lists, -1), axis=0)
    physical = _places(page_table, ids, request, width, pages)
    known = (lists >= 0) & (lists < width)
    full = (known & ((lists + 1) * P <= ends[:, None])).to(gl.int32)
    some = (known & (lists * P < ends[:, None])).to(gl.int32)
    common, odd = gl.min(full, axis=0), gl.max(some, axis=0)
    walked, tail_bit, parts = _bits(common, odd, entry, K)
    # Nor do rows walk their request's first page together where some see a part of it: `team_softmax`.
    unlike = gl.max((lists != ids[None, :]).to(gl.int32), axis=0) | ((odd & ~common) & (ids == 0).to(gl.int32))
    together = (gl.sum(unlike, axis=0) == 0) & ((parts & (parts - 1)) == 0)
    # The entries of this program where rows walk together, and which rows walk alone: at first, or after all.
    start = (row - first) * SHARE
    mine = ((1 << SHARE) - 1) << start
    alone_from = row - first
    alone_until = alone_from + 1
    if together:
        alone_from = gl.to_tensor(0)
        alone_until = gl.to_tensor(0)
        # The other rows have nothing to do, and their place is wanted.
        if row - first < WALKERS:
            walked, tail_bit = walked & mine, tail_bit & mine
            # Asked for before the pages, behind which they would come late.
            queries = load_lines(q, first, kv_head, HEADS, G, TEAM * EACH, EACH, D)
            team = open_stream(keys, values, ready, physical, KV_HEADS, kv_head, TEAM_RING, P, D)
            keys_left, values_left = begin(team, walked | tail_bit)
            tail_page = gl.max(gl.where(tail_bit == (1 << entry), ids, -1), axis=0)
            seen = gl.minimum(gl.maximum(ends - tail_page * P, 0), P)
            void = walk_together(
                out, peaks, norms, totals, queries, team, keys_left, values_left, walked, tail_bit, seen, first, start,
                scale, value_scale, HEADS, G, EACH, SHARE, NODES, NODE,
            )  # fmt: skip
            # What was stored is stored once more.
            alone_until = gl.where(void, TEAM, 0)
    for each in range(alone_from, alone_until):
        # Read once more, rather than kept beside a team's walk.
        own = gl.load(page_ids + ((first + each) * KV_HEADS + kv_head) * K + entry)
        end = gl.minimum(gl.load(qo_offsets + first + each) + 1, gl.load(kv_lens + request))
        own_physical = _places(page_table, own, request, width, pages)
        own_known = (own >= 0) & (own < width)
        own_full, own_some = own_known & ((own + 1) * P <= end), own_known & (own * P < end)
        own_walked, own_tail, _ = _bits(own_full.to(gl.int32), own_some.to(gl.int32), entry, K)
        if together:
            own_walked, own_tail = own_walked & mine, own_tail & mine
        last = gl.maximum(end, 0) // P
        own_queries = load_lines(q, first + each, kv_head, HEADS, G, EACH, EACH, D)
        stream = open_stream(keys, values, ready, own_physical, KV_HEADS, kv_head, ROW_RING, P, D)
        head, real, peak, norm, total = walk_alone(
            own_queries, stream, own_walked, own_tail, first + each, end - last * P, scale, last == 0, HEADS, G, NODE
        )
        dim = gl.arange(0, D, gl.SliceLayout(0, total.type.layout))
        if WALKERS > 1:
            if together:
                place = head * NODES + start // NODE
                store_partial(peaks, norms, totals, place, peak, norm, total, real, dim, D)
            else:
                # Nothing is left to merge.
                store_answered(peaks, head * NODES, real)
                store_result(out, head, norm, total, value_scale, real, dim, D)
        else:
            store_result(out, head, norm, total, value_scale, real, dim, D)


def attend_teams(
    out: torch.Tensor,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_ids: torch.Tensor,
    page_table: torch.Tensor,
    kv_lens: torch.Tensor,
    qo_offsets: torch.Tensor,
    scale: float,
    peaks: torch.Tensor,
    norms: torch.Tensor,
    totals: torch.Tensor,
    v_scale: float,
    pdl: bool,
    node: int,
    plan: Plan,
) -> None:
    """`msa.ops.triton.sparse_gqa` in one launch, grid (T, Hkv), where `takes` says so; bits are the same.

    Rows of a team whose lists are alike, and which see the same pages in full but for one, are a tile of 64 lines that reads
    each page once. Other rows walk alone. Where `Plan.walkers` is above one, teams leave a part for each node, and
    `merge` has to follow, told the size of a group: rows that walked alone have their result and say so.

    Args:
        peaks, norms, totals: [T, Hq, K / node], and D behind it; read and written where teams leave parts.
        scale: what logits are multiplied with, in units of log2.
        node: entries of a node.
        plan: how the programs share the work.
        others: as `msa.ops.triton.sparse_gqa` takes them.
    """
    rows, kv_heads, top_k = page_ids.shape
    batch, width = page_table.shape
    pages, _, page_size, dim = k_cache.shape
    layout = gl.NVMMASharedLayout(128, 8 * k_cache.itemsize, 2)
    keys, values = (
        TensorDescriptor.from_tensor(cache.view(-1, dim), [page_size, dim], layout) for cache in (k_cache, v_cache)
    )
    _attend_teams[(rows, kv_heads)](
        out,
        peaks,
        norms,
        totals,
        q,
        keys,
        values,
        page_ids,
        page_table,
        kv_lens,
        qo_offsets,
        width,
        pages,
        scale,
        v_scale,
        Q=rows // batch,
        KV_HEADS=kv_heads,
        G=q.shape[1] // kv_heads,
        EACH=LEAST_LINES,
        K=top_k,
        NODE=node,
        TEAM=TEAM,
        WALKERS=plan.walkers,
        TEAM_RING=plan.team_ring,
        ROW_RING=plan.row_ring,
        ROOM=plan.room,
        P=page_size,
        D=dim,
        PDL=pdl,
        **launch_options(ATTENTION_WARPS, pdl),
    )
