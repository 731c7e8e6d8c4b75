"""Rotary position embedding in the half-split form of Llama, from a table made once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from eagle3.errors import HeadConfigRefused, ShapeMismatch
from eagle3.ops.library import operator
from graphcheck.contract import capture_safe, refuse_while_capturing

_SCALINGS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def check_scaling(scaling: Mapping[str, Any] | None) -> list[str]:
    """What speaks against a ``rope_scaling`` entry; empty if the table can be made."""
    if not scaling:
        return []
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind not in _SCALINGS:
        return [f"rope_scaling of type {kind!r}, expected one of {', '.join(_SCALINGS)}"]
    missing = [name for name in _SCALINGS[kind] if name not in scaling]
    return [f"rope_scaling of type {kind!r} lacks {', '.join(missing)}"] if missing else []


def rope_table(
    length: int,
    rotary_dim: int,
    theta: float,
    scaling: Mapping[str, Any] | None = None,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Cosines and sines fp32 [length, R] of positions 0 to length - 1: R/2 cosines, then R/2 sines. Host only.

    Computed in float64 and rounded once.

    Args:
        length: positions.
        rotary_dim: R, dims of a head that are rotated, the leading ones; even.
        theta: base of the frequencies.
        scaling: none, or ``rope_type`` "linear" or "llama3" with their fields (Hugging Face transformers,
            ``modeling_rope_utils.py``).

    Raises:
        CaptureRefused: the current stream is capturing.
        HeadConfigRefused: ``rotary_dim`` is odd, or there is no such scaling.
    """
    refuse_while_capturing("rope table")
    objections = check_scaling(scaling)
    if rotary_dim < 2 or rotary_dim % 2:
        objections.append(f"{rotary_dim} rotated dims, expected an even number >= 2")
    if objections:
        raise HeadConfigRefused(f"no table can be made: {'; '.join(objections)}")
    frequencies = theta ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
    if scaling:
        frequencies = _scaled(frequencies, scaling)
    angles = torch.arange(length, dtype=torch.float64).unsqueeze(1) * frequencies
    return torch.cat([angles.cos(), angles.sin()], 1).to(dtype=torch.float32, device=device)


def _scaled(frequencies: torch.Tensor, scaling: Mapping[str, Any]) -> torch.Tensor:
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind == "default":
        return frequencies
    slow = frequencies / float(scaling["factor"])
    if kind == "linear":
        return slow
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    turns = float(scaling["original_max_position_embeddings"]) * frequencies / (2 * math.pi)
    # Fast frequencies stay, slow ones are divided, those between go over smoothly.
    share = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return slow * (1 - share) + frequencies * share


def _rope(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    half = table.shape[1] // 2
    row = table.index_select(0, positions.to(torch.int64).clamp(0, table.shape[0] - 1)).unsqueeze(1)
    cos, sin = row[..., :half], row[..., half:]
    left, right = x[..., :half].to(torch.float32), x[..., half : 2 * half].to(torch.float32)
    out = x.new_empty(x.shape)
    out[..., :half].copy_(left * cos - right * sin)
    out[..., half : 2 * half].copy_(right * cos + left * sin)
    out[..., 2 * half :].copy_(x[..., 2 * half :])
    return out


def rope_meta(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Shape and dtype of the result."""
    return x.new_empty(x.shape)


def check_rope(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> None:
    """Pass if the shapes belong together.

    Raises:
        ShapeMismatch: they do not.
    """
    fits = x.dim() == 3 and table.dim() == 2 and tuple(positions.shape) == tuple(x.shape[:1])
    if not fits or table.shape[1] > x.shape[2] or table.dtype is not torch.float32:
        raise ShapeMismatch(
            f"rope got x {tuple(x.shape)}, positions {tuple(positions.shape)}, table {table.dtype} "
            f"{tuple(table.shape)}; expected [T, heads, D], [T] and a float32 table [positions, R] with R <= D"
        )


_operator = operator("rope(Tensor x, Tensor positions, Tensor table) -> Tensor", _rope, rope_meta)


@capture_safe(dynamic=("x", "positions", "table"))
def rope(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """``x`` rotated to its positions [T, heads, D], in its dtype, contiguous; dims behind R stay as they are.

    Args:
        x: [T, heads, D] any float dtype, device; the rows may be views of wider ones.
        positions: [T] int32 or int64, device. Outside the table they count as its first or last row: a padding row may
            hold anything.
        table: [positions, R] fp32, device, as `rope_table` makes it.

    Raises:
        ShapeMismatch: the shapes do not belong together.

    Read live: rows and positions. Frozen at capture: shapes and the table.
    """
    check_rope(x, positions, table)
    return _operator(x, positions, table)
