"""Products of rows and a weight: a fixed order of sums per weight, whatever the number of rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eagle3.ops.linear import check_linear, linear_meta
from eagle3.ops.triton.launch import ALIGNMENT, check_aligned, interpreted, launch_options, opaque

BLOCK_N = 64
# Rows of a tile. Both are made of the same 16-row instructions, each row by itself, in the same order over the depth: at
# 64 rows the compiler would take another instruction.
FEW, MANY = 16, 32
# Programs that fill a GPU a few times over: the depth is split until there are about so many.
PROGRAMS = 512
MOST_SPLITS = 16
MERGE_BLOCK = 1024


@triton.jit(do_not_specialize=["rows"])
def _multiply(
    out,
    partials,
    x,
    weight,
    bias,
    rows,
    N: tl.constexpr,
    K: tl.constexpr,
    SPLITS: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
    BIAS: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    # Tiles of rows come first in the grid: those that share a piece of the weight run together and find it in L2.
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    real, inside = (row < rows)[:, None], (column < N)[:, None]
    left_start = x + row.to(tl.int64)[:, None] * K
    right_start = weight + column.to(tl.int64)[:, None] * K
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for step in tl.range(split * STEPS, tl.minimum((split + 1) * STEPS, tl.cdiv(K, BLOCK_K)), num_stages=STAGES):
        depth = (step * BLOCK_K + tl.arange(0, BLOCK_K))[None, :]
        if K % BLOCK_K == 0:
            left = tl.load(left_start + depth, mask=real, other=0.0)
            right = tl.load(right_start + depth, mask=inside, other=0.0)
        else:
            left = tl.load(left_start + depth, mask=real & (depth < K), other=0.0)
            right = tl.load(right_start + depth, mask=inside & (depth < K), other=0.0)
        if INTERPRETED:
            # NumPy would ask a BLAS that treats the rows of a product differently.
            total += tl.sum(left.to(tl.float32)[:, None, :] * right.to(tl.float32)[None, :, :], axis=2)
        else:
            total = tl.dot(left, tl.trans(right), total, input_precision="ieee")
    place = row.to(tl.int64)[:, None] * N + column[None, :]
    kept = real & (column < N)[None, :]
    if SPLITS == 1:
        if BIAS:
            total += tl.load(bias + column, mask=column < N, other=0.0).to(tl.float32)[None, :]
        tl.store(out + place, total.to(out.dtype.element_ty), mask=kept)
    else:
        tl.store(partials + split.to(tl.int64) * rows * N + place, total, mask=kept)


@triton.jit(do_not_specialize=["rows"])
def _merge(
    out,
    partials,
    bias,
    rows,
    N: tl.constexpr,
    SPLITS: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = row * N + column
    size = rows.to(tl.int64) * N
    total = tl.load(partials + place, mask=column < N, other=0.0)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(partials + split * size + place, mask=column < N, other=0.0)
    if BIAS:
        total += tl.load(bias + column, mask=column < N, other=0.0).to(tl.float32)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=column < N)


def shape_of(columns: int, depth: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """Depth of a tile, splits of the depth and tiles in each, from the weight's shape and dtype alone."""
    block = 64 if dtype is torch.float32 else 128
    steps, blocks, splits = -(-depth // block), -(-columns // BLOCK_N), 1
    while splits < MOST_SPLITS and 2 * splits * blocks <= PROGRAMS and steps >= 4 * splits:
        splits *= 2
    each = -(-steps // splits)
    return block, -(-steps // each), each


def _linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype | None
) -> torch.Tensor:
    check_aligned(weight=weight, bias=bias)
    rows, depth = x.shape
    columns = weight.shape[0]
    out = x.new_empty(rows, columns, dtype=dtype or x.dtype)
    if rows == 0:
        return out
    operand = x.to(weight.dtype).contiguous()
    if operand.data_ptr() % ALIGNMENT:
        operand = operand.clone()
    block, splits, steps = shape_of(columns, depth, weight.dtype)
    partials = out if splits == 1 else x.new_empty(splits, rows, columns, dtype=torch.float32)
    tile = FEW if rows <= FEW else MANY
    _multiply[(-(-rows // tile), -(-columns // BLOCK_N), splits)](
        out,
        partials,
        operand,
        weight,
        weight if bias is None else bias,
        rows,
        N=columns,
        K=depth,
        SPLITS=splits,
        STEPS=steps,
        BLOCK_M=tile,
        BLOCK_N=BLOCK_N,
        BLOCK_K=block,
        STAGES=3,
        BIAS=bias is not None,
        INTERPRETED=interpreted(_multiply),
        **launch_options(4),
    )
    if splits > 1:
        _merge[(rows, -(-columns // MERGE_BLOCK))](
            out,
            partials,
            weight if bias is None else bias,
            rows,
            N=columns,
            SPLITS=splits,
            BIAS=bias is not None,
            BLOCK=MERGE_BLOCK,
            **launch_options(4),
        )
    return out


_operator = opaque("linear(Tensor x, Tensor weight, Tensor? bias, ScalarType? dtype) -> Tensor", _linear, linear_meta)


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """``x @ weight.T + bias`` [T, N], accumulated in fp32 and rounded once; row r depends on row r of ``x`` only.

    One launch, grid (tiles of rows, N / 64, splits); a second one, grid (T, N / 1024), where the depth is split. The
    split follows from the weight's shape; its parts are added in ascending order. With at most 16 rows a tile has 16,
    else 32: the only two variants per weight.

    Args:
        x: [T, Kin] any float dtype, device; converted to the weight's.
        weight: [N, Kin] bf16, fp16 or fp32, device, contiguous.
        bias: [N] any float dtype, device, contiguous.
        dtype: of the result; that of ``x`` by default.

    Raises:
        ShapeMismatch: the shapes do not belong together, or a weight is not contiguous and aligned to 16 bytes.

    Read live: all tensors. Frozen at capture: shapes and dtypes.
    """
    check_linear(x, weight, bias)
    return _operator(x, weight, bias, dtype)
