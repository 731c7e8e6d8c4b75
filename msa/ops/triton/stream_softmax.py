"""A page's softmax over tiles of a `Stream`: of one row's lines, or of a team of rows at a time. Bits as `tile.page_softmax`."""

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mma_v2,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from msa.ops.triton.page_stream import ask_behind, barrier, came, shared, unseen
from msa.ops.triton.tile import larger, weigh

# Rows of a page whose values are cleared at a time.
EDGE = gl.constexpr(16)


@gluon.jit
def empty(LINES: gl.constexpr, C: gl.constexpr, D: gl.constexpr, MMA: gl.constexpr):
    """`tile.nothing` in a layout."""
    peak = gl.full([LINES], float("-inf"), gl.float32, gl.SliceLayout(1, MMA))
    return peak, gl.zeros([LINES, C], gl.float32, MMA), gl.zeros([LINES, D], gl.float32, MMA)


@gluon.jit
def row_softmax(
    stream, queries, step, keys_left, values_left, seen, scale, few, MASKED: gl.constexpr, MMA: gl.constexpr
):
    """The softmax of a row's lines over the page of a step; asks for the tiles behind it.

    Args:
        queries: [LINES, D] as left operand of ``MMA``, a layout of mma.sync.
        keys_left, values_left: of `begin`.
        seen: tokens that the row sees, where ``MASKED``; all of them otherwise.
        scale: [LINES], what products are multiplied with.
        few: where ``MASKED``, whether they are so few that the rounding of weights would not average out.

    Returns:
        peak [LINES], norm [LINES, C], total [LINES, D], fp32, and what is left.
    """
    M: gl.constexpr = queries.shape[0]
    P: gl.constexpr = stream.ring.shape[1]
    D: gl.constexpr = stream.ring.shape[2]
    C: gl.constexpr = 8 * gl.num_warps()
    LEFT: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    keys = came(stream, 2 * step).permute((1, 0)).load(RIGHT)
    keys_left, values_left = ask_behind(stream, 2 * step, keys_left, values_left, False)
    raw = mma_v2(queries, keys, gl.zeros([M, P], gl.float32, MMA))
    if MASKED:
        raw = gl.where(gl.arange(0, P, gl.SliceLayout(0, MMA))[None, :] < seen, raw, float("-inf"))
    peak, weights = weigh(raw, scale)
    operand = weights.to(queries.dtype)
    left = gl.convert_layout(operand, LEFT)
    values = came(stream, 2 * step + 1).load(RIGHT)
    keys_left, values_left = ask_behind(stream, 2 * step + 1, keys_left, values_left, True)
    if MASKED:
        values = gl.where(gl.arange(0, P, gl.SliceLayout(1, RIGHT))[:, None] < seen, values, 0.0)
    total = mma_v2(left, values, gl.zeros([M, D], gl.float32, MMA))
    ones = gl.full([P, C], 1.0, queries.dtype, RIGHT)
    norm = mma_v2(left, ones, gl.zeros([M, C], gl.float32, MMA))
    if MASKED:  # noqa: SIM102 - decided when it is compiled
        if few:
            rest = gl.convert_layout((weights - operand.to(gl.float32)).to(queries.dtype), LEFT)
            total = mma_v2(rest, values, total)
            norm = mma_v2(rest, ones, norm)
    return peak, norm, total, keys_left, values_left


@gluon.jit
def _sums(operand):
    """Sums of weights [M, P] in a product with ones: [M, C], which are alike."""
    M: gl.constexpr = operand.shape[0]
    P: gl.constexpr = operand.shape[1]
    C: gl.constexpr = 8
    MMA: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [4, 1], [16, C])
    left = gl.convert_layout(operand, gl.DotOperandLayout(0, MMA, 2))
    ones = gl.full([P, C], 1.0, operand.dtype, gl.DotOperandLayout(1, MMA, 2))
    return mma_v2(left, ones, gl.zeros([M, C], gl.float32, MMA))


@gluon.jit
def _clear(values, fewest, most):
    """Zeros behind ``most`` of the tokens of values [P, D] in shared memory: a weight of zero would not keep NaN away.

    Returns:
        whether values of tokens from ``fewest`` on, which some lines see and others do not, are not finite: a product of
        all lines is not for such.
    """
    P: gl.constexpr = values.shape[0]
    D: gl.constexpr = values.shape[1]
    FLAT: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [gl.num_warps(), 1], [1, 0])
    INFINITY: gl.constexpr = 0x7C00 if values.dtype == gl.float16 else 0x7F80
    strange = gl.zeros([EDGE, D], gl.int32, FLAT)
    for edge in gl.static_range(0, P, EDGE):
        if fewest < edge + EDGE:
            part = values.slice(edge, EDGE)
            row = edge + gl.arange(0, EDGE, gl.SliceLayout(1, FLAT))[:, None]
            held = part.load(FLAT)
            late = (row >= fewest) & (row < most) & ((held.to(gl.int16, bitcast=True) & 0x7FFF) >= INFINITY)
            strange |= late.to(gl.int32)
            part.store(gl.where(row < most, held, 0.0))
    fence_async_shared()
    barrier()
    return gl.max(gl.max(strange, axis=1), axis=0)


@gluon.jit
def team_softmax(stream, queries, step, keys_left, values_left, seen_of, scale, TAIL: gl.constexpr, MMA: gl.constexpr):
    """The softmax of a team's lines over the page of a step; asks for the tiles behind it.

    Args:
        queries: [1, M, D] in shared memory.
        keys_left, values_left: of `begin`.
        seen_of: tokens of the page that each row sees (`share` of [rows]), where ``TAIL``; all of them otherwise. It is not
            the first page of its request: there the rounding of weights would not average out.
        scale: [M], what products are multiplied with.

    Returns:
        peak [M], norm [M, 1], total [M, D] in ``MMA``, a layout of wgmma, fp32; whether `_clear` found them void; and what
        is left.
    """
    M: gl.constexpr = queries.shape[1]
    P: gl.constexpr = stream.ring.shape[1]
    D: gl.constexpr = stream.ring.shape[2]
    ROWS: gl.constexpr = seen_of.shape[0]
    keys = came(stream, 2 * step).permute((1, 0))
    raw = warpgroup_mma(queries.index(unseen(0)), keys, gl.zeros([M, P], gl.float32, MMA), use_acc=False, is_async=True)
    # While the products are made.
    values = came(stream, 2 * step + 1)
    void = gl.to_tensor(0)
    if TAIL:
        row_of = gl.arange(0, M, gl.SliceLayout(1, MMA)) // (M // ROWS)
        seen = gl.zeros([M], gl.int32, gl.SliceLayout(1, MMA))
        fewest = gl.to_tensor(P)
        most = gl.to_tensor(0)
        for row in gl.static_range(ROWS):
            own = shared(seen_of, row)
            seen = gl.where(row_of == row, own, seen)
            fewest, most = gl.minimum(fewest, own), gl.maximum(most, own)
        void = _clear(values, fewest, most)
    raw = warpgroup_mma_wait(0, deps=[raw])
    keys_left, values_left = ask_behind(stream, 2 * step, keys_left, values_left, False)
    if TAIL:
        raw = gl.where(gl.arange(0, P, gl.SliceLayout(0, MMA))[None, :] < seen[:, None], raw, float("-inf"))
    peak, weights = weigh(raw, scale)
    operand = weights.to(queries.dtype)
    left = gl.convert_layout(operand, gl.DotOperandLayout(0, MMA, 2))
    total = warpgroup_mma(left, values, gl.zeros([M, D], gl.float32, MMA), use_acc=False, is_async=True)
    sums = tl.reduce(_sums(operand), 1, larger)
    total = warpgroup_mma_wait(0, deps=[total])
    keys_left, values_left = ask_behind(stream, 2 * step + 1, keys_left, values_left, True)
    return peak, gl.convert_layout(sums, gl.SliceLayout(1, MMA))[:, None], total, void, keys_left, values_left
