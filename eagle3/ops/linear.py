"""Products of rows and a weight, each row by itself."""

from __future__ import annotations

import torch

from eagle3.errors import ShapeMismatch
from eagle3.ops.library import operator
from eagle3.ops.tile import TILE_ROWS, row_tiles, stacked, widened
from graphcheck.contract import capture_safe

# In MKL a row has the same bits at every place of a 16-row tile. In OpenBLAS it does not, so there each row is a product
# of its own, which costs three times as much where there are many.
TILED = torch.backends.mkl.is_available()


def _linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype | None
) -> torch.Tensor:
    wide = widened(weight)
    if TILED or not x.is_cpu:
        products = [torch.mm(tile, wide.t()) for tile in row_tiles(x)]
    else:
        counts = [rows.shape[0] for rows in x.split(TILE_ROWS)]
        tiles = zip(row_tiles(x), counts, strict=False)
        products = [torch.stack([torch.mv(wide, row) for row in tile[:count]]) for tile, count in tiles]
    if bias is not None:
        for product in products:
            product[:, : bias.shape[0]].add_(bias.to(torch.float32))
    return stacked(products, x, weight.shape[0], dtype or x.dtype)


def linear_meta(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype | None
) -> torch.Tensor:
    """Shape and dtype of the result."""
    return x.new_empty(x.shape[0], weight.shape[0], dtype=dtype or x.dtype)


def check_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Pass if the shapes belong together.

    Raises:
        ShapeMismatch: they do not.
    """
    fits = x.dim() == 2 and weight.dim() == 2 and x.shape[1] == weight.shape[1]
    if fits and (bias is None or tuple(bias.shape) == (weight.shape[0],)):
        return
    given = "none" if bias is None else str(tuple(bias.shape))
    raise ShapeMismatch(
        f"linear got x {tuple(x.shape)}, weight {tuple(weight.shape)}, bias {given}; "
        "expected [T, Kin], [N, Kin] and [N] or no bias"
    )


_operator = operator("linear(Tensor x, Tensor weight, Tensor? bias, ScalarType? dtype) -> Tensor", _linear, linear_meta)


@capture_safe(dynamic=("x", "weight", "bias"), static=("dtype",))
def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """``x @ weight.T + bias`` [T, N], accumulated in fp32 and rounded once; row r depends on row r of ``x`` only.

    The weight is widened to fp32 at every call unless it is fp32 already.

    Args:
        x: [T, Kin] any float dtype, device.
        weight: [N, Kin] any float dtype, device.
        bias: [N] any float dtype, device.
        dtype: of the result; that of ``x`` by default.

    Raises:
        ShapeMismatch: the shapes do not belong together.

    Read live: all tensors. Frozen at capture: shapes and dtypes.
    """
    check_linear(x, weight, bias)
    return _operator(x, weight, bias, dtype)
