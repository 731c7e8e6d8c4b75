"""Rotary position embedding: one program per row, all of its heads."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eagle3.ops.rope import check_rope, rope_meta
from eagle3.ops.triton.launch import (
    aligned_rows,
    check_aligned,
    lane,
    lanes_apart,
    launch_options,
    opaque,
)
from msa.ops.triton.launch import power_of_two


@triton.jit(do_not_specialize=["positions", "lanes", "length"])
def _rotate(
    out,
    x,
    positions,
    table,
    lanes,
    length,
    HEADS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    LANE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    position = tl.minimum(tl.maximum(tl.load(positions + row).to(tl.int64), 0), length - 1)
    head = tl.arange(0, BLOCK_HEADS)[:, None]
    pair = tl.arange(0, BLOCK_HALF)
    known = pair < HALF
    cos = tl.load(table + position * (2 * HALF) + pair, mask=known, other=0.0)[None, :]
    sin = tl.load(table + position * (2 * HALF) + HALF + pair, mask=known, other=0.0)[None, :]
    inside = (head < HEADS) & known[None, :]
    source = x + row * lanes * LANE + head * D
    target = out + row * (HEADS * D) + head * D
    left = tl.load(source + pair[None, :], mask=inside, other=0.0).to(tl.float32)
    right = tl.load(source + HALF + pair[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(target + pair[None, :], (left * cos - right * sin).to(out.dtype.element_ty), mask=inside)
    tl.store(target + HALF + pair[None, :], (right * cos + left * sin).to(out.dtype.element_ty), mask=inside)
    if D > 2 * HALF:
        dim = 2 * HALF + tl.arange(0, BLOCK_REST)[None, :]
        behind = (head < HEADS) & (dim < D)
        tl.store(target + dim, tl.load(source + dim, mask=behind), mask=behind)


def _rope(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    check_aligned(table=table)
    rows, heads, dim = x.shape
    out = x.new_empty(x.shape)
    if rows == 0:
        return out
    x = aligned_rows(x)
    half = table.shape[1] // 2
    _rotate[(rows,)](
        out,
        x,
        positions.contiguous(),
        table,
        lanes_apart(x),
        table.shape[0],
        HEADS=heads,
        BLOCK_HEADS=power_of_two(heads),
        D=dim,
        HALF=half,
        BLOCK_HALF=power_of_two(half),
        BLOCK_REST=power_of_two(dim - 2 * half),
        LANE=lane(x.dtype),
        **launch_options(1 if heads == 1 else 4),
    )
    return out


_operator = opaque("rope(Tensor x, Tensor positions, Tensor table) -> Tensor", _rope, rope_meta)


def rope(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """``x`` rotated to its positions [T, heads, D], in its dtype, contiguous; dims behind R stay as they are.

    One launch, grid (T).

    Args:
        x: [T, heads, D] any float dtype, device; the rows may be views of wider ones.
        positions: [T] int32 or int64, device. Outside the table they count as its first or last row.
        table: [positions, R] fp32, device, as `eagle3.ops.rope_table` makes it.

    Raises:
        ShapeMismatch: the shapes do not belong together, or the table is not contiguous and aligned to 16 bytes.

    Read live: rows, positions and table. Frozen at capture: shapes.
    """
    check_rope(x, positions, table)
    return _operator(x, positions, table)
