"""The tile: 16 zero-padded fp32 query rows against one page, the only matrix product that msa makes.

A product of this fixed shape gives a row the same bits whatever the number of tiles, the other rows of the tile and the
width of the table. Driver and eager API share these functions, so they share the bits.
"""

from __future__ import annotations

import torch

from msa.geometry import FP8, TILE_ROWS

# cuBLAS chooses a kernel, and with it the order of a sum, by the number of matrices in a batched product (one ulp
# between 64 and 512 on an H200). So every call multiplies this many, the last one padded with zeros.
TILES_PER_CALL = 32


def query_tiles(rows: torch.Tensor) -> torch.Tensor:
    """Rows [..., R, D] of any float dtype as fp32 [..., 16, D], zero-padded; R <= 16. Device only."""
    *outer, count, dim = rows.shape
    tiles = rows.new_zeros((*outer, TILE_ROWS, dim), dtype=torch.float32)
    tiles.narrow(-2, 0, count).copy_(rows)
    return tiles


def page_heads(cache: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Pages of a cache as fp32 tiles [N, P, D].

    Args:
        cache: [pages, heads, P, D], device; any float dtype or fp8 e4m3.
        index: [N] int64, device, page * heads + head.
    """
    pages, heads, page_size, dim = cache.shape
    flat = cache.view(pages * heads, page_size, dim)
    if cache.dtype is FP8:
        return flat.view(torch.uint8).index_select(0, index).view(FP8).to(torch.float32)
    return flat.index_select(0, index).to(torch.float32)


def dots(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Dot products fp32 [N, 16, P] of query tiles [N, 16, D] and page tiles [N, P, D], fp32."""
    return _products(queries, keys, transposed=True)


def weighted(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Weighted sums of values fp32 [N, 16, D] of weights [N, 16, P] and page tiles [N, P, D], fp32."""
    return _products(weights, values, transposed=False)


def _products(rows: torch.Tensor, pages: torch.Tensor, transposed: bool) -> torch.Tensor:
    """Products of tiles and pages (transposed or not), in calls of one fixed shape."""
    count = rows.shape[0]
    whole = count - count % TILES_PER_CALL
    products = rows.new_empty(count, TILE_ROWS, pages.shape[1 if transposed else 2])
    for first in range(0, whole, TILES_PER_CALL):
        right = pages.narrow(0, first, TILES_PER_CALL)
        torch.bmm(
            rows.narrow(0, first, TILES_PER_CALL),
            right.transpose(1, 2) if transposed else right,
            out=products.narrow(0, first, TILES_PER_CALL),
        )
    if whole < count:
        right = _padded(pages.narrow(0, whole, count - whole))
        last = torch.bmm(_padded(rows.narrow(0, whole, count - whole)), right.transpose(1, 2) if transposed else right)
        products.narrow(0, whole, count - whole).copy_(last.narrow(0, 0, count - whole))
    return products


def _padded(tiles: torch.Tensor) -> torch.Tensor:
    """At most `TILES_PER_CALL` tiles, filled up with zeros to that number."""
    full = tiles.new_zeros((TILES_PER_CALL, *tiles.shape[1:]))
    full.narrow(0, 0, tiles.shape[0]).copy_(tiles)
    return full


def weigh(logits: torch.Tensor) -> torch.Tensor:
    """Unnormalised softmax weights of logits fp32 [R, J, 16, P] over J and P, where -inf marks what is masked.

    A masked position has weight +0 exactly, also in a row that has nothing else.
    """
    peak = logits.amax((1, 3), keepdim=True)
    peak.masked_fill_(peak == float("-inf"), 0.0)
    return logits.sub_(peak).exp_()


def combine(weights: torch.Tensor, parts: list[torch.Tensor]) -> torch.Tensor:
    """Attention output fp32 [R, 16, D]: pages are added in ascending order, then divided by the sum of the weights.

    A page whose weights are zero leaves every bit as it is; a row without weights is zero.

    Args:
        weights: [R, J, 16, P] fp32.
        parts: J weighted sums of values [R, 16, D] fp32.
    """
    sums = weights.sum(-1, keepdim=True).unbind(1)
    # Sums start at +0, so that adding the zeros of an empty page cannot turn a -0 into +0.
    total, norm = torch.zeros_like(parts[0]), torch.zeros_like(sums[0])
    for part, share in zip(parts, sums, strict=True):
        total += part
        norm += share
    # Not `norm > 0`: a NaN among the live values must reach the output.
    return total.div_(norm).masked_fill_(norm == 0, 0.0)
