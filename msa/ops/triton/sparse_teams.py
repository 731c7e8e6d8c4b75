"""Sparse attention on Hopper, where four rows of a request that select the same pages walk them together."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from msa.ops.triton.launch import UNITS, launch_options
from msa.ops.triton.merge import store_answered
from msa.ops.triton.page_stream import open_stream
from msa.ops.triton.team_walk import load_lines, walk_alone, walk_together
from msa.ops.triton.tile import ATTENTION_WARPS, LEAST_LINES, dependency_wait

# Rows of a team, as many as make a tile of 64 lines; numbers of a page and of a head, as many as a product's instruction takes.
TEAM = 4
SIDE = 128
# Numbers that an address of the kernel can name.
_MOST = 2**31


@dataclass(frozen=True)
class Plan:
    """How the programs of a launch share the work. No bit depends on it.

    Args:
        walkers: programs that share the list of a team that walks together, the whole or a node each.
        team_ring: tiles that a team keeps on their way. One that walks its whole list keeps a sum in shared memory as well.
        row_ring: tiles that a row keeps on their way where it walks alone.
    """

    walkers: int
    team_ring: int
    row_ring: int

    @classmethod
    def of(cls, rows: int, kv_heads: int) -> Plan:
        """For T rows and Hkv heads: whole lists for a team where teams fill the GPU, a node for each program elsewhere.

        A row alone keeps three tiles on their way where its program has a multiprocessor to itself; two are faster where
        programs share one.
        """
        alone = 3 if rows * kv_heads <= UNITS else 2
        return cls(1, 2, alone) if rows // TEAM * kv_heads > UNITS else cls(TEAM, 3, alone)


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


@gluon.jit(do_not_specialize=["width", "pages", "scale", "value_scale"])
def _attend_teams(
    out,
    peaks,
    norms,
    totals,
    q,
    keys,
    values,
    v_cache,
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
    P: gl.constexpr,
    D: gl.constexpr,
    PDL: gl.constexpr,
):
    HEADS: gl.constexpr = KV_HEADS * G
    NODES: gl.constexpr = K // NODE
    SHARE: gl.constexpr = K // WALKERS
    ALL: gl.constexpr = (1 << K) - 1
    LISTS: gl.constexpr = gl.BlockedLayout([TEAM, 1], [1, 32], [1, gl.num_warps()], [1, 0])
    dependency_wait(PDL)
    row = gl.program_id(0)
    kv_head = gl.program_id(1)
    request = row // Q
    first = row // TEAM * TEAM
    mate = gl.arange(0, TEAM, gl.SliceLayout(1, LISTS))
    entry = gl.arange(0, K, gl.SliceLayout(0, LISTS))
    lists = gl.load(page_ids + ((first + mate) * KV_HEADS + kv_head)[:, None] * K + entry[None, :])
    ends = gl.minimum(gl.load(qo_offsets + first + mate) + 1, gl.load(kv_lens + request))
    own = mate == row - first
    ids = gl.max(gl.where(own[:, None], lists, -1), axis=0)
    end = gl.max(gl.where(own, ends, -1), axis=0)
    physical = gl.load(page_table + request.to(gl.int64) * width + ids, mask=(ids >= 0) & (ids < width), other=0)
    physical = gl.minimum(gl.maximum(physical, 0), pages - 1)
    known = (lists >= 0) & (lists < width)
    full = (known & ((lists + 1) * P <= ends[:, None])).to(gl.int32)
    some = (known & (lists * P < ends[:, None])).to(gl.int32)
    # Entries that all rows see in full, and others of which some see a part or all; the same of this row. A bit for each,
    # the others' K bits higher.
    common, row_full = gl.min(full, axis=0), gl.max(gl.where(own[:, None], full, 0), axis=0)
    odd, row_some = gl.max(some, axis=0), gl.max(gl.where(own[:, None], some, 0), axis=0)
    team_bits = gl.sum((common << entry) | ((odd & ~common) << (entry + K)), axis=0)
    row_bits = gl.sum((row_full << entry) | ((row_some & ~row_full) << (entry + K)), axis=0)
    # Nor do rows walk their request's first page together where some see a part of it: `team_last_page`.
    unlike = gl.max((lists != ids[None, :]).to(gl.int32), axis=0) | ((odd & ~common) & (ids == 0).to(gl.int32))
    unlike = gl.sum(unlike, axis=0)
    odd_bits = (team_bits >> K) & ALL
    # Offsets that do not follow each other are no team's: `any_strange` looks at as many tokens as there are rows.
    near = gl.max(ends, axis=0) - gl.min(ends, axis=0) <= TEAM
    together = (unlike == 0) & ((odd_bits & (odd_bits - 1)) == 0) & near
    bits = gl.where(together, team_bits, row_bits)
    # A page that is seen in part is the last one, in a list that ascends.
    tail_bit = (bits >> K) & ALL
    tail_bit &= -tail_bit
    walked = bits & ALL & (tail_bit - 1)
    if together:
        # The other rows have nothing to do, and their place is wanted.
        if row - first < WALKERS:
            start = (row - first) * SHARE
            mine = ((1 << SHARE) - 1) << start
            tail_bit &= mine
            at_tail = tail_bit == (1 << entry)
            tail = gl.max(gl.where(at_tail, physical, -1), axis=0)
            tail_page = gl.max(gl.where(at_tail, ids, -1), axis=0)
            queries = load_lines(q, first, kv_head, HEADS, G, TEAM * EACH, EACH, D)
            team = open_stream(keys, values, physical, KV_HEADS, kv_head, TEAM_RING, P, D)
            walk_together(
                out, peaks, norms, totals, queries, v_cache, team, walked & mine, tail_bit, ends, first, start,
                tail, tail_page, scale, value_scale, HEADS, G, EACH, SHARE, NODES, NODE,
            )  # fmt: skip
    else:
        last = gl.maximum(end, 0) // P
        own_queries = load_lines(q, row, kv_head, HEADS, G, EACH, EACH, D)
        alone = open_stream(keys, values, physical, KV_HEADS, kv_head, ROW_RING, P, D)
        walk_alone(
            out, own_queries, alone, walked, tail_bit, row, end - last * P, scale, last == 0, value_scale,
            HEADS, G, NODE,
        )  # fmt: skip
        if WALKERS > 1:
            # Nothing is left to merge.
            line = gl.arange(0, EACH, gl.BlockedLayout([1], [32], [gl.num_warps()], [0]))
            place = ((row * HEADS + kv_head * G + line) * NODES).to(gl.int64)
            store_answered(peaks, place, line < G)


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
        v_cache,
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
        P=page_size,
        D=dim,
        PDL=pdl,
        **launch_options(ATTENTION_WARPS, pdl),
    )
