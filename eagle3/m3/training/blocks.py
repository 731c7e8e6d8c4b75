"""What target and head are made of when they are trained."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Norm(nn.Module):
    """RMSNorm over the last dimension, in fp32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(rows.float(), self.weight.shape, self.weight, self.eps)


class Rotation(nn.Module):
    """Half-split RoPE of the leading dims of heads [B, h, S, D] at given positions [S]."""

    angles: torch.Tensor

    def __init__(self, positions: int, rotary_dim: int, theta: float) -> None:
        super().__init__()
        frequencies = theta ** -(torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
        angles = torch.arange(positions, dtype=torch.float64).unsqueeze(1) * frequencies
        self.register_buffer("angles", torch.stack((angles.cos(), angles.sin())).float(), persistent=False)

    def forward(self, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        cos, sin = self.angles[:, positions].unbind(0)
        half = cos.shape[-1]
        first, second, still = heads.tensor_split((half, 2 * half), -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin, still), -1)


class FeedForward(nn.Module):
    """A gated feed-forward layer."""

    def __init__(self, hidden: int, wide: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, wide, bias=False)
        self.up_proj = nn.Linear(hidden, wide, bias=False)
        self.down_proj = nn.Linear(wide, hidden, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(rows)) * self.up_proj(rows))  # type: ignore[no-any-return]


def exact_logits(normed: torch.Tensor, lm_head: nn.Linear) -> torch.Tensor:
    """Logits in fp32 also under autocast: rounded to bf16, the two best tokens of a row are too often equal."""
    with torch.autocast(normed.device.type, enabled=False):
        return F.linear(normed.float(), lm_head.weight)


def initialise(module: nn.Module, seed: int, depth: int) -> None:
    """Weights of every matrix are drawn from one generator; those that write the residual stream begin smaller."""
    draw = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        if parameter.dim() == 2:
            deviation = 0.02 if "embed" in name else parameter.shape[1] ** -0.5
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                deviation *= (2 * depth) ** -0.5
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=draw) * deviation)
