"""The gated activation of a feed-forward layer."""

from __future__ import annotations

import torch

from eagle3.errors import ShapeMismatch
from eagle3.ops.library import operator
from eagle3.ops.tile import row_tiles, stacked
from graphcheck.contract import capture_safe


def _swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    products = [
        left.neg().exp_().add_(1.0).reciprocal_().mul_(left).mul_(right)
        for left, right in zip(row_tiles(gate), row_tiles(up), strict=True)
    ]
    return stacked(products, gate, gate.shape[1], gate.dtype)


def swiglu_meta(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Shape and dtype of the result."""
    return gate.new_empty(gate.shape)


def check_swiglu(gate: torch.Tensor, up: torch.Tensor) -> None:
    """Pass if both have one shape and dtype.

    Raises:
        ShapeMismatch: they do not.
    """
    if gate.dim() != 2 or gate.shape != up.shape or gate.dtype is not up.dtype:
        raise ShapeMismatch(
            f"swiglu got gate {gate.dtype} {tuple(gate.shape)} and up {up.dtype} {tuple(up.shape)}; "
            "expected two [T, I] of one dtype"
        )


_operator = operator("swiglu(Tensor gate, Tensor up) -> Tensor", _swiglu, swiglu_meta)


@capture_safe(dynamic=("gate", "up"))
def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` [T, I] in their dtype, computed in fp32 and rounded once.

    Args:
        gate, up: [T, I] any float dtype, device; the rows may be views of wider ones.

    Raises:
        ShapeMismatch: they differ in shape or dtype.

    Read live: both tensors. Frozen at capture: shapes and dtypes.
    """
    check_swiglu(gate, up)
    return _operator(gate, up)
