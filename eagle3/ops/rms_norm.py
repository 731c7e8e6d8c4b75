"""Root-mean-square normalisation of rows."""

from __future__ import annotations

import torch

from eagle3.errors import ShapeMismatch
from eagle3.ops.library import operator
from eagle3.ops.tile import row_tiles, stacked
from graphcheck.contract import capture_safe


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    width = x.shape[1]
    wide = weight.to(torch.float32)
    normed = []
    for tile in row_tiles(x):
        # What the tile has behind the row is zero, which adds nothing to the sum.
        mean = tile.square().sum(1, keepdim=True).div_(width)
        normed.append(tile[:, :width].mul(mean.add_(eps).rsqrt_()).mul_(wide))
    return stacked(normed, x, width, x.dtype)


def rms_norm_meta(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Shape and dtype of the result."""
    return x.new_empty(x.shape)


def check_rms_norm(x: torch.Tensor, weight: torch.Tensor) -> None:
    """Pass if the shapes belong together.

    Raises:
        ShapeMismatch: they do not.
    """
    if x.dim() != 2 or tuple(weight.shape) != tuple(x.shape[1:]):
        raise ShapeMismatch(
            f"rms_norm got x {tuple(x.shape)} and weight {tuple(weight.shape)}; expected [T, H] and [H]"
        )


_operator = operator("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor", _rms_norm, rms_norm_meta)


@capture_safe(dynamic=("x", "weight"), static=("eps",))
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """``x / sqrt(mean(x ** 2) + eps) * weight`` [T, H] in the dtype of ``x``, computed in fp32 and rounded once.

    Args:
        x: [T, H] any float dtype, device.
        weight: [H] any float dtype, device.
        eps: what the mean square is raised by.

    Raises:
        ShapeMismatch: the shapes do not belong together.

    Read live: both tensors. Frozen at capture: shapes, dtypes and ``eps``.
    """
    check_rms_norm(x, weight)
    return _operator(x, weight, eps)
