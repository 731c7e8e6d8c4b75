"""The tile: 16 zero-padded fp32 rows, the only shape that the portable operators compute on.

BLAS chooses a kernel, and with it the order of a sum, by the shape of a product; vectorised functions treat the last few
elements of a tensor otherwise than the rest. A tensor of one fixed shape, whose sides are multiples of the vector
length, has neither effect: a row gets the same bits at every place of every tile. (Measured with MKL and with torch's own
vectorised functions; the tests measure it wherever they run.)
"""

from __future__ import annotations

import torch

TILE_ROWS = 16
# Sides of a tile are multiples of this. With odd sides the place of a row in the tile changed bits (7 columns, depth 33).
MULTIPLE = 16


def row_tiles(rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Rows [T, W] of any float dtype as fp32 tiles [16, W'], zero-padded; W' is W rounded up to a multiple of 16."""
    count, width = rows.shape
    tiles = rows.new_zeros(-(-count // TILE_ROWS), TILE_ROWS, padded(width), dtype=torch.float32)
    tiles.view(-1, tiles.shape[2])[:count, :width].copy_(rows)
    return tiles.unbind(0)


def widened(matrix: torch.Tensor) -> torch.Tensor:
    """A matrix [N, W] of any float dtype as fp32 [N', W'], zero-padded to multiples of 16; itself where it is that."""
    count, width = matrix.shape
    if padded(count) == count and padded(width) == width:
        return matrix.to(torch.float32)
    full = matrix.new_zeros(padded(count), padded(width), dtype=torch.float32)
    full[:count, :width].copy_(matrix)
    return full


def stacked(tiles: list[torch.Tensor], like: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
    """The first rows and columns of tiles [16, W'] as one contiguous tensor [T, width] of a dtype.

    Args:
        tiles: as many as the rows of ``like`` fill.
        like: [T, ...], gives the number of rows and the device.
    """
    out = like.new_empty(like.shape[0], width, dtype=dtype)
    for tile, rows in zip(tiles, out.split(TILE_ROWS), strict=False):
        rows.copy_(tile[: rows.shape[0], :width])
    return out


def padded(side: int) -> int:
    """The smallest multiple of 16 that is at least ``side``."""
    return -(-side // MULTIPLE) * MULTIPLE
