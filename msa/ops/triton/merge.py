"""The last step of a split attention: partial softmaxes of each row, folded in one fixed order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from msa.ops.triton.launch import check_aligned, launch_options, power_of_two
from msa.ops.triton.tile import dependency_wait, fold, larger, nothing

# Lines up to which each has a program of its own.
ALONE = 2048


@triton.jit
def store_partial(
    peaks,
    norms,
    totals,
    place,
    peak,
    norm,
    total,
    real,
    dim,
    D: tl.constexpr,
):
    """Partials stand at ``place`` int64 [M]; a row without tokens stores its peak of -inf and nothing else."""
    some = real & (peak != float("-inf"))
    tl.store(peaks + place, peak, mask=real)
    tl.store(norms + place, tl.reduce(norm, 1, larger), mask=some)
    tl.store(totals + place[:, None] * D + dim[None, :], total, mask=some[:, None] & (dim < D)[None, :])


@triton.jit
def store_empty(peaks, place, real):
    """The parts at ``place`` int64 [M] have no token."""
    tl.store(peaks + place, float("-inf"), mask=real)


@triton.jit
def store_result(out, line, norm, total, value_scale, real, dim, D: tl.constexpr):
    """What softmaxes norm [M, C] and total [M, BLOCK_D] say, to lines int64 [M] of ``out``; +0 where they have no token."""
    # Not `norm > 0`: a NaN among the live values must reach the output.
    norm = tl.reduce(norm, 1, larger)
    empty = norm == 0.0
    result = tl.where(empty[:, None], 0.0, total / tl.where(empty, 1.0, norm)[:, None] * value_scale)
    target = out + line[:, None] * D + dim[None, :]
    tl.store(target, result.to(out.dtype.element_ty), mask=real[:, None] & (dim < D)[None, :])


@triton.jit
def store_answered(peaks, place, real):
    """The line whose first part stands at ``place`` has its result: a peak of NaN, which no softmax has."""
    tl.store(peaks + place, float("nan"), mask=real)


@triton.jit
def _fold_parts(
    out,
    peaks,
    norms,
    totals,
    line,
    real,
    value_scale,
    PARTS: tl.constexpr,
    NODE: tl.constexpr,
    LINES: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    dim = tl.arange(0, BLOCK_D)
    inside = real[:, None] & (dim < D)[None, :]
    # Everything is asked for before anything is folded: loads between the folds would wait for each other.
    parts = ()
    for part in tl.static_range(PARTS):
        place = line * PARTS + part
        # What a part without tokens holds is read at the same time as its peak, and left out: it may be anything.
        parts = parts + (
            tl.load(peaks + place, mask=real, other=float("-inf")),
            tl.load(norms + place, mask=real, other=0.0),
            tl.load(totals + place[:, None] * D + dim[None, :], mask=inside, other=0.0),
        )
    peak, norm, total = nothing(LINES, 1, BLOCK_D)
    node_peak, node_norm, node_total = nothing(LINES, 1, BLOCK_D)
    for part in tl.static_range(PARTS):
        some = parts[3 * part] != float("-inf")
        more_norm = tl.where(some, parts[3 * part + 1], 0.0)[:, None]
        more_total = tl.where(some[:, None], parts[3 * part + 2], 0.0)
        node_peak, node_norm, node_total = fold(
            node_peak, node_norm, node_total, parts[3 * part], more_norm, more_total, some
        )
        if part == PARTS - 1 or part % NODE == NODE - 1:
            peak, norm, total = fold(peak, norm, total, node_peak, node_norm, node_total, real)
            node_peak, node_norm, node_total = nothing(LINES, 1, BLOCK_D)
    store_result(out, line, norm, total, value_scale, real, dim, D)


@triton.jit(do_not_specialize=["value_scale", "lines"])
def _merge(
    out,
    peaks,
    norms,
    totals,
    value_scale,
    lines,
    PARTS: tl.constexpr,
    NODE: tl.constexpr,
    LINES: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ANSWERED: tl.constexpr,
    PDL: tl.constexpr,
):
    dependency_wait(PDL)
    line = tl.program_id(0).to(tl.int64) * LINES + tl.arange(0, LINES)
    real = line < lines
    if ANSWERED:
        # The lines of a program are heads of one group, which have their result, or have not, together.
        peak = tl.load(peaks + tl.program_id(0).to(tl.int64) * (LINES * PARTS))
        if peak == peak:
            _fold_parts(out, peaks, norms, totals, line, real, value_scale, PARTS, NODE, LINES, D, BLOCK_D)
    else:
        _fold_parts(out, peaks, norms, totals, line, real, value_scale, PARTS, NODE, LINES, D, BLOCK_D)


def merge(
    out: torch.Tensor,
    peaks: torch.Tensor,
    norms: torch.Tensor,
    totals: torch.Tensor,
    value_scale: float,
    pdl: bool,
    *,
    node: int,
    group: int = 0,
) -> None:
    """``out[r, h]`` is the softmax that the parts of (r, h) make up, folded in one fixed order; +0 if all are empty.

    One launch, grid (T * Hq / lines). Parts are folded to nodes of ``node`` in order, and those in order: the bits
    are those of a workspace in which programs made the nodes.

    Args:
        out: [T, Hq, D] dtype, device; written in place.
        peaks: [T, Hq, S] fp32, device: largest logit of each part in units of log2; -inf where it has no token.
        norms: [T, Hq, S] fp32, device: sums of the weights; may be anything where the part has no token.
        totals: [T, Hq, S, D] fp32, device: weighted sums of values; likewise.
        value_scale: what values are multiplied with.
        node: parts of a node; the last one may have fewer.
        group: G, where lines may have their result already (`store_answered`), all lines of a group or none.

    Read live: the parts. Frozen at capture: all shapes and the scale.
    """
    check_aligned(out=out)
    rows, heads, parts, dim = totals.shape
    lines = rows * heads
    # A warp for each line; four of them in a program where there are many, or where programs may have nothing to do.
    four = group % 4 == 0 if group else lines > ALONE
    together = 4 if four else 1
    _merge[(-(-lines // together),)](
        out,
        peaks,
        norms,
        totals,
        value_scale,
        lines,
        PARTS=parts,
        NODE=node,
        LINES=together,
        D=dim,
        BLOCK_D=power_of_two(dim, 16),
        ANSWERED=group > 0,
        PDL=pdl,
        # Without leave for so many registers the compiler asks for one part after the other.
        **launch_options(together, pdl, maxnreg=255 if parts > 8 else 128),
    )
