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
    LAST: tl.constexpr,
    STEPS: tl.constexpr,
    NODES: tl.constexpr,
    BLOCK_NODES: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PDL: tl.constexpr,
):
    dependency_wait(PDL)
    row = tl.program_id(0).to(tl.int64)
    node = tl.arange(0, BLOCK_NODES)
    dim = tl.arange(0, BLOCK_D)
    # Everything is asked for before anything is folded: loads between the folds would wait for each other.
    parts = ()
    for step in tl.static_range(STEPS):
        part = tl.where(node < NODES, node * INNER + step, PARTS - LAST + step)
        there = ((node < NODES) & (step < INNER) & (part < PARTS - LAST)) | ((node == NODES) & (step < LAST))
        place = row * PARTS + part
        inside = there[:, None] & (dim < D)[None, :]
        # What a part without tokens holds is read at the same time as its peak, and left out: it may be anything.
        parts = parts + (
            tl.load(peaks + place, mask=there, other=float("-inf")),
            tl.load(norms + place, mask=there, other=0.0),
            tl.load(totals + place[:, None] * D + dim[None, :], mask=inside, other=0.0),
        )
    peak, norm, total = nothing(BLOCK_NODES, BLOCK_D)
    for step in tl.static_range(STEPS):
        some = parts[3 * step] != float("-inf")
        more_norm = tl.where(some, parts[3 * step + 1], 0.0)
        more_total = tl.where(some[:, None], parts[3 * step + 2], 0.0)
        peak, norm, total = fold(peak, norm, total, parts[3 * step], more_norm, more_total, some)
    highest = tl.max(peak, axis=0)
    share = tl.exp2(peak - tl.where(highest == float("-inf"), 0.0, highest))
    norm = tl.sum(norm * share, axis=0)
    total = tl.sum(total * share[:, None], axis=0)
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
    *,
    inner: int,
    last: int,
) -> None:
    """``out[r, h]`` is the softmax that the parts of (r, h) make up, added in one fixed tree; +0 if all are empty.

    One launch, grid (T * Hq). The tree has a node for every ``inner`` parts, folded in order as a program of the attention
    folds blocks, and one for the ``last`` parts: its bits are those of a workspace in which programs did that folding.

    Args:
        out: [T, Hq, D] dtype, device; written in place.
        peaks: [T, Hq, S] fp32, device: largest logit of each part in units of log2; -inf where it has no token.
        norms: [T, Hq, S] fp32, device: sums of the weights; may be anything where the part has no token.
        totals: [T, Hq, S, D] fp32, device: weighted sums of values; likewise.
        value_scale: what values are multiplied with.
        inner, last: parts of a node, and of the last one.

    Read live: the parts. Frozen at capture: all shapes and the scale.
    """
    check_aligned(out=out)
    rows, heads, parts, dim = totals.shape
    nodes = -(-(parts - last) // inner)
    _merge[(rows * heads,)](
        out,
        peaks,
        norms,
        totals,
        value_scale,
        PARTS=parts,
        INNER=inner,
        LAST=last,
        STEPS=max(inner, last),
        NODES=nodes,
        BLOCK_NODES=power_of_two(nodes + 1),
        D=dim,
        BLOCK_D=power_of_two(dim, 16),
        PDL=pdl,
        # Without leave for so many registers the compiler asks for one part after the other.
        **launch_options(4, pdl, maxnreg=128),
    )
