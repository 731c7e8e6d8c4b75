"""The same functions in plain torch, without the promise: BLAS may choose by the number of rows.

What the operators are checked against, and what their price is measured against.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """As `eagle3.ops.linear`; tensors of one dtype."""
    return F.linear(x, weight, bias).to(dtype or x.dtype)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As `eagle3.ops.rms_norm`; in float64 where ``x`` is."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.to(wide.dtype)).to(x.dtype)


def rope(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """As `eagle3.ops.rope`; in float64 where ``x`` is."""
    half = table.shape[1] // 2
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    rotation = table.to(wide.dtype)[positions.to(torch.int64).clamp(0, table.shape[0] - 1)].unsqueeze(1)
    cos, sin = rotation[..., :half], rotation[..., half:]
    left, right = wide[..., :half], wide[..., half : 2 * half]
    turned = [left * cos - right * sin, right * cos + left * sin, wide[..., 2 * half :]]
    return torch.cat(turned, -1).to(x.dtype)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """As `eagle3.ops.swiglu`; in float64 where ``gate`` is."""
    wide = torch.promote_types(gate.dtype, torch.float32)
    return (F.silu(gate.to(wide)) * up.to(wide)).to(gate.dtype)
