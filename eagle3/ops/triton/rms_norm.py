"""Root-mean-square normalisation: one program per row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eagle3.ops.rms_norm import check_rms_norm, rms_norm_meta
from eagle3.ops.triton.launch import (
    aligned_rows,
    check_aligned,
    lane,
    lanes_apart,
    launch_options,
    opaque,
)
from msa.ops.triton.launch import power_of_two


@triton.jit(do_not_specialize=["lanes", "eps"])
def _norm(out, x, weight, lanes, eps, H: tl.constexpr, BLOCK: tl.constexpr, LANE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    value = tl.load(x + row * lanes * LANE + column, mask=column < H, other=0.0).to(tl.float32)
    gain = tl.load(weight + column, mask=column < H, other=0.0).to(tl.float32)
    mean = tl.sum(value * value, axis=0) / H
    tl.store(out + row * H + column, (value * tl.rsqrt(mean + eps) * gain).to(out.dtype.element_ty), mask=column < H)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    check_aligned(weight=weight)
    out = x.new_empty(x.shape)
    if x.shape[0] == 0:
        return out
    x = aligned_rows(x)
    width = x.shape[1]
    _norm[(x.shape[0],)](
        out,
        x,
        weight,
        lanes_apart(x),
        eps,
        H=width,
        BLOCK=power_of_two(width, 16),
        LANE=lane(x.dtype),
        **launch_options(4 if width <= 2048 else 8),
    )
    return out


_operator = opaque("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor", _rms_norm, rms_norm_meta)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / sqrt(mean(x ** 2) + eps) * weight`` [T, H] in the dtype of ``x``, computed in fp32 and rounded once.

    One launch, grid (T).

    Args:
        x: [T, H] any float dtype, device; the rows may be views of wider ones.
        weight: [H] any float dtype, device, contiguous.
        eps: what the mean square is raised by.

    Raises:
        ShapeMismatch: the shapes do not belong together, or the weight is not contiguous and aligned to 16 bytes.

    Read live: both tensors. Frozen at capture: shapes, dtypes and ``eps``.
    """
    check_rms_norm(x, weight)
    return _operator(x, weight, eps)
