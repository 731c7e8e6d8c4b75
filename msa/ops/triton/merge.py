"""The last step of a split attention: partial softmaxes of each row, added in one fixed tree."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from msa.ops.triton.launch import check_aligned, launch_options, power_of_two
from msa.ops.triton.tile import dependency_wait, fold, nothing


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
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Partials stand at ``place`` int64 [M]; a row without tokens stores its peak of -inf and nothing else."""
    some = real & (peak != float("-inf"))
    dim = tl.arange(0, BLOCK_D)
    tl.store(peaks + place, peak, mask=real)
    tl.store(norms + place, norm, mask=some)
    tl.store(totals + place[:, None] * D + dim[None, :], total, mask=some[:, None] & (dim < D)[None, :])


@triton.jit
def store_empty(peaks, place, real):
    """The parts at ``place`` int64 [M] have no token."""
    tl.store(peaks + place, float("-inf"), mask=real)


@triton.jit(do_not_specialize=["value_scale"])
def _merge(
    out,
    peaks,
    norms,
    totals,
    value_scale,
    PARTS: tl.constexpr,
    INNER: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PDL: tl.constexpr,
):
    dependency_wait(PDL)
    row = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, BLOCK_GROUPS)
    dim = tl.arange(0, BLOCK_D)
    peaks_of, norms_of, totals_of = nothing(BLOCK_GROUPS, BLOCK_D)
    for step in tl.static_range(INNER):
        part = tl.where(group < GROUPS, group * INNER + step, PARTS - 1)
        there = tl.where(group < GROUPS, part < PARTS - 1, (group == GROUPS) & (step == 0))
        place = row * PARTS + part
        peak = tl.load(peaks + place, mask=there, other=float("-inf"))
        # A part without tokens counts as +0, and its scratch is not read.
        some = peak != float("-inf")
        norm = tl.load(norms + place, mask=some, other=0.0)
        inside = some[:, None] & (dim < D)[None, :]
        total = tl.load(totals + place[:, None] * D + dim[None, :], mask=inside, other=0.0)
        if INNER == 1:
            peaks_of, norms_of, totals_of = peak, norm, total
        else:
            peaks_of, norms_of, totals_of = fold(peaks_of, norms_of, totals_of, peak, norm, total, there)
    peak = tl.max(peaks_of, axis=0)
    share = tl.exp2(peaks_of - tl.where(peak == float("-inf"), 0.0, peak))
    norm = tl.sum(norms_of * share, axis=0)
    total = tl.sum(totals_of * share[:, None], axis=0)
    # Not `norm > 0`: a NaN among the live values must reach the output.
    result = tl.where(norm == 0.0, 0.0, total / tl.where(norm == 0.0, 1.0, norm) * value_scale)
    tl.store(out + row * D + dim, result.to(out.dtype.element_ty), mask=dim < D)


def merge(
    out: torch.Tensor,
    peaks: torch.Tensor,
    norms: torch.Tensor,
    totals: torch.Tensor,
    value_scale: float,
    pdl: bool,
    inner: int = 1,
) -> None:
    """``out[r, h]`` is the softmax that the parts of (r, h) make up, added in one fixed tree; +0 if all are empty.

    One launch, grid (T * Hq). The tree has a node for every ``inner`` parts, folded in order as a program of the attention
    folds pages, and one for the last part: its bits are those of a workspace in which programs did that folding.

    Args:
        out: [T, Hq, D] dtype, device; written in place.
        peaks: [T, Hq, S] fp32, device: largest logit of each part in units of log2; -inf where it has no token.
        norms: [T, Hq, S] fp32, device: sums of the weights; not read where the part has no token.
        totals: [T, Hq, S, D] fp32, device: weighted sums of values; not read where the part has no token.
        value_scale: what values are multiplied with.
        inner: parts of a node.

    Read live: the parts. Frozen at capture: all shapes and the scale.
    """
    check_aligned(out=out)
    rows, heads, parts, dim = totals.shape
    groups = -(-(parts - 1) // inner)
    _merge[(rows * heads,)](
        out,
        peaks,
        norms,
        totals,
        value_scale,
        PARTS=parts,
        INNER=inner,
        GROUPS=groups,
        BLOCK_GROUPS=power_of_two(groups + 1),
        D=dim,
        BLOCK_D=power_of_two(dim, 16),
        PDL=pdl,
        **launch_options(1 if groups < 8 else 4, pdl),
    )
