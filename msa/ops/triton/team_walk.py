"""Walks through page lists, from tiles of a `Stream`: of a team of rows with one list, and of a row alone."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from msa.ops.triton.merge import store_partial, store_result
from msa.ops.triton.page_stream import barrier, begin, close, ones_of, share
from msa.ops.triton.stream_softmax import empty, row_softmax, team_softmax
from msa.ops.triton.tile import fold

# Totals [64, 128] in shared memory as the threads of a product hold them, so that each has one address: pairs of columns by
# lanes and warps, and these by registers.
_AS_HELD = gl.constexpr(
    [[0, 1], [0, 2], [0, 4], [1, 0], [2, 0], [4, 0], [16, 0], [32, 0], [8, 0], [0, 8], [0, 16], [0, 32], [0, 64]]
)


@gluon.jit
def load_lines(
    q, row, kv_head, HEADS: gl.constexpr, G: gl.constexpr, LINES: gl.constexpr, EACH: gl.constexpr, D: gl.constexpr
):
    """Queries [LINES, D] of the rows from ``row`` on, EACH lines a row."""
    FLAT: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [gl.num_warps(), 1], [1, 0])
    line = gl.arange(0, LINES, gl.SliceLayout(1, FLAT))
    place = ((row + line // EACH) * HEADS + kv_head * G + line % EACH) * D
    dim = gl.arange(0, D, gl.SliceLayout(0, FLAT))
    return gl.load(q + place[:, None] + dim[None, :], mask=(line % EACH < G)[:, None], other=0.0)


@gluon.jit
def _heads(
    row, kv_head, HEADS: gl.constexpr, G: gl.constexpr, LINES: gl.constexpr, EACH: gl.constexpr, MMA: gl.constexpr
):
    """Row times heads plus head of each line [LINES], int64, and whether it has one; rows as in `load_lines`."""
    line = gl.arange(0, LINES, gl.SliceLayout(1, MMA))
    return ((row + line // EACH) * HEADS + kv_head * G + line % EACH).to(gl.int64), line % EACH < G


@gluon.jit
def walk_together(
    out, peaks, norms, totals, queries, stream, keys_left, values_left, walked, tail_bit, seen, first, start, scale,
    value_scale,
    HEADS: gl.constexpr, G: gl.constexpr, EACH: gl.constexpr, SHARE: gl.constexpr, NODES: gl.constexpr,
    NODE: gl.constexpr,
):  # fmt: skip
    """The attention of a team over its list or, where SHARE entries from ``start`` on are a node of it, that node.

    Args:
        queries: [M, D], EACH lines a row.
        keys_left, values_left: of `begin`.
        walked, tail_bit: int32, the entries that all rows see in full, and the last one, of which some see a part.
        seen: [rows] int32, tokens of the last one that each row sees.

    Returns:
        whether the rows have to walk alone after all: `team_softmax`.
    """
    M: gl.constexpr = queries.shape[0]
    D: gl.constexpr = stream.ring.shape[2]
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    BESIDE: gl.constexpr = gl.SliceLayout(1, MMA)
    ALL: gl.constexpr = SHARE == NODES * NODE
    lines = gl.allocate_shared_memory(stream.ring.dtype, [1, M, D], stream.ring.layout)
    lines.index(0).store(queries.to(stream.ring.dtype))
    fence_async_shared()
    barrier()
    scale = gl.full([M], scale, gl.float32, BESIDE)
    count = ones_of(walked)
    behind = (tail_bit != 0).to(gl.int32)
    seen_of = share(seen)
    void = gl.to_tensor(0)
    peak, norm, total = empty(M, 1, D, MMA)
    if ALL:
        # The sum of the nodes waits here for the next one: registers hold one of them, beside a page.
        LINE: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
        sums = gl.allocate_shared_memory(gl.float32, [M, D], gl.SharedLinearLayout(_AS_HELD))
        sum_peaks = gl.allocate_shared_memory(gl.float32, [M], LINE)
        sum_norms = gl.allocate_shared_memory(gl.float32, [M], LINE)
    nodes = (count + behind + NODE - 1) // NODE
    for node in range(nodes):
        peak, norm, total = empty(M, 1, D, MMA)
        for step in range(node * NODE, gl.minimum(node * NODE + NODE, count)):
            more_peak, more_norm, more_total, _, keys_left, values_left = team_softmax(
                stream, lines, step, keys_left, values_left, seen_of, scale, False, MMA
            )
            peak, norm, total = fold(peak, norm, total, more_peak, more_norm, more_total, True)
        if (behind > 0) & (node == nodes - 1):
            more_peak, more_norm, more_total, void, keys_left, values_left = team_softmax(
                stream, lines, count, keys_left, values_left, seen_of, scale, True, MMA
            )
            peak, norm, total = fold(peak, norm, total, more_peak, more_norm, more_total, True)
        if ALL:
            if node > 0:
                sum_norm = sum_norms.load(BESIDE)[:, None]
                peak, norm, total = fold(sum_peaks.load(BESIDE), sum_norm, sums.load(MMA), peak, norm, total, True)
            if node < nodes - 1:
                sums.store(total)
                sum_norms.store(gl.max(norm, axis=1))
                sum_peaks.store(peak)
    head, real = _heads(first, stream.head, HEADS, G, M, EACH, MMA)
    dim = gl.arange(0, D, gl.SliceLayout(0, MMA))
    if ALL:
        store_result(out, head, norm, total, value_scale, real, dim, D)
    else:
        store_partial(peaks, norms, totals, head * NODES + start // NODE, peak, norm, total, real, dim, D)
    if void > 0:
        close(stream)
    return void > 0


@gluon.jit
def walk_alone(
    queries, stream, walked, tail_bit, row, seen, scale, few, HEADS: gl.constexpr, G: gl.constexpr, NODE: gl.constexpr
):
    """The softmax of a row over the entries of its list that are walked.

    Args:
        queries: [LINES, D].
        walked, tail_bit: int32, the entries that the row sees in full, and the last one, of which it sees ``seen`` tokens.
        few: of `row_softmax`.

    Returns:
        row times heads plus head of each line [LINES], whether it has one, and peak, norm and total.
    """
    M: gl.constexpr = queries.shape[0]
    P: gl.constexpr = stream.ring.shape[1]
    D: gl.constexpr = stream.ring.shape[2]
    C: gl.constexpr = 8 * gl.num_warps()
    MMA: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [1, gl.num_warps()], [16, 8])
    keys_left, values_left = begin(stream, walked | tail_bit)
    head, real = _heads(row, stream.head, HEADS, G, M, M, MMA)
    queries = gl.convert_layout(queries.to(stream.ring.dtype), gl.DotOperandLayout(0, MMA, 2))
    scale = gl.full([M], scale, gl.float32, gl.SliceLayout(1, MMA))
    count = ones_of(walked)
    peak, norm, total = empty(M, C, D, MMA)
    sum_peak, sum_norm, sum_total = empty(M, C, D, MMA)
    for step in range(count):
        more_peak, more_norm, more_total, keys_left, values_left = row_softmax(
            stream, queries, step, keys_left, values_left, P, scale, False, False, MMA
        )
        peak, norm, total = fold(peak, norm, total, more_peak, more_norm, more_total, real)
        if step % NODE == NODE - 1:
            sum_peak, sum_norm, sum_total = fold(sum_peak, sum_norm, sum_total, peak, norm, total, real)
            peak, norm, total = empty(M, C, D, MMA)
    if tail_bit != 0:
        more_peak, more_norm, more_total, keys_left, values_left = row_softmax(
            stream, queries, count, keys_left, values_left, seen, scale, few, True, MMA
        )
        peak, norm, total = fold(peak, norm, total, more_peak, more_norm, more_total, real)
    peak, norm, total = fold(sum_peak, sum_norm, sum_total, peak, norm, total, real)
    close(stream)
    return head, real, peak, norm, total
