"""The last step of a split attention: partial softmaxes of each row, added in one fixed tree."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from msa.ops.triton.launch import check_aligned, launch_options, power_of_two
from msa.ops.triton.tile import dependency_wait


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
    BLOCK_PARTS: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PDL: tl.constexpr,
):
    dependency_wait(PDL)
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, BLOCK_PARTS)
    dim = tl.arange(0, BLOCK_D)
    place = row * PARTS + part
    mine = tl.load(peaks + place, mask=part < PARTS, other=float("-inf"))
    # A part without tokens counts as +0, and its scratch is not read.
    some = mine != float("-inf")
    peak = tl.max(mine, axis=0)
    share = tl.exp2(mine - tl.where(peak == float("-inf"), 0.0, peak))
    norm = tl.sum(tl.load(norms + place, mask=some, other=0.0) * share, axis=0)
    whole = tl.load(totals + place[:, None] * D + dim[None, :], mask=some[:, None] & (dim < D)[None, :], other=0.0)
    total = tl.sum(whole * share[:, None], axis=0)
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
) -> None:
    """``out[r, h]`` is the softmax that the parts of (r, h) make up, added in one fixed tree; +0 if all are empty.

    One launch, grid (T * Hq).

    Args:
        out: [T, Hq, D] dtype, device; written in place.
        peaks: [T, Hq, S] fp32, device: largest logit of each part in units of log2; -inf where it has no token.
        norms: [T, Hq, S] fp32, device: sums of the weights; not read where the part has no token.
        totals: [T, Hq, S, D] fp32, device: weighted sums of values; not read where the part has no token.
        value_scale: what values are multiplied with.

    Read live: the parts. Frozen at capture: all shapes and the scale.
    """
    check_aligned(out=out)
    rows, heads, parts, dim = totals.shape
    _merge[(rows * heads,)](
        out,
        peaks,
        norms,
        totals,
        value_scale,
        PARTS=parts,
        BLOCK_PARTS=power_of_two(parts),
        D=dim,
        BLOCK_D=power_of_two(dim, 16),
        PDL=pdl,
        **launch_options(1 if parts <= 8 else 4, pdl),
    )
