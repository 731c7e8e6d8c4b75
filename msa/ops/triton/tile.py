"""Device functions that the kernels share: the wait for earlier kernels, products, a block's softmax and sums of them."""

from __future__ import annotations

import triton
import triton.language as tl

# Lines (query rows times heads) of an attention tile. Always as many: a product's hardware instruction, and with it the
# order in which a line's sums are made, must not follow from how many rows share a step.
TILE_LINES = 64
ATTENTION_WARPS = 4
# Tokens of a block, the unit that attention walks: half of a page of 128, so that the next ones fit beside it.
BLOCK_TOKENS = 64


def blocks_per_page(page_size: int) -> int:
    """Blocks that a page is walked in."""
    return max(page_size // BLOCK_TOKENS, 1)


@triton.jit
def dependency_wait(PDL: tl.constexpr):
    """Everything that earlier kernels wrote is visible. First statement of a kernel, before any load of metadata."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        # Later kernels may be scheduled from here on; their own wait lasts until this grid has ended.
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def product(left, right, WIDE: tl.constexpr, sum_so_far=None):
    """Matrix product of two tiles of one dtype, accumulated in fp32; ``WIDE`` where the operands must be fp32."""
    if WIDE:
        return tl.dot(left.to(tl.float32), right.to(tl.float32), sum_so_far, input_precision="ieee")
    return tl.dot(left, right, sum_so_far, input_precision="ieee")


@triton.jit
def physical_page(table, page, wanted, pages):
    """Where logical pages lie, inside the cache whatever the table holds; any page where not ``wanted``."""
    return tl.minimum(tl.maximum(tl.load(table + page, mask=wanted, other=0), 0), pages - 1)


@triton.jit
def block_address(page, heads, head, first, P: tl.constexpr, N: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Offsets int64 [N, BLOCK_D] of one head's tokens ``first`` and on in a page of a cache [pages, heads, P, D]."""
    start = (page.to(tl.int64) * heads + head) * (P * D) + first * D
    return start + tl.arange(0, N)[:, None] * D + tl.arange(0, BLOCK_D)[None, :]


@triton.jit
def load_block(cache, address, seen, D: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr):
    """Tokens [N, BLOCK_D]; what is not ``seen``, [N] or a scalar, is zero where ``MASKED``."""
    if MASKED:
        inside = tl.where(seen, 1, 0) + tl.zeros([address.shape[0]], tl.int32) > 0
        return tl.load(cache + address, mask=(tl.arange(0, BLOCK_D) < D)[None, :] & inside[:, None], other=0.0)
    if BLOCK_D == D:
        return tl.load(cache + address)
    return tl.load(cache + address, mask=(tl.arange(0, BLOCK_D) < D)[None, :], other=0.0)


@triton.jit
def block_softmax(queries, keys, values, seen, scale, few, MASKED: tl.constexpr, WIDE: tl.constexpr):
    """The softmax of lines [M, BLOCK_D] over a block of tokens: peak, norm [M] and total [M, BLOCK_D], fp32.

    Peaks are in units of log2, -inf where nothing has weight. ``scale`` [M] is what a line's products are multiplied
    with. Where ``MASKED``, ``seen`` [M, N] says which tokens count, and ``few`` that lines see so few tokens that the
    rounding of their weights would not average out. Products and sums are written as ``fma`` where they may be one, so
    that no compiler decides about a bit.
    """
    raw = product(queries, tl.trans(keys.to(queries.dtype)), WIDE)
    if MASKED:
        raw = tl.where(seen, raw, float("-inf"))
    peak = tl.max(raw, axis=1) * scale
    # Nothing but -inf or NaN: subtracting it from itself would give NaN, or hide one.
    peak = tl.where(peak > float("-inf"), peak, 0.0)
    weights = tl.exp2(tl.fma(raw, tl.broadcast_to(scale[:, None], raw.shape), -peak[:, None]))
    norm = tl.sum(weights, axis=1)
    operand = weights.to(queries.dtype)
    total = product(operand, values.to(queries.dtype), WIDE)
    if MASKED and queries.dtype != tl.float32:  # noqa: SIM102 - decided when it is compiled
        if few:
            rest = (weights - operand.to(tl.float32)).to(queries.dtype)
            total = product(rest, values.to(queries.dtype), WIDE, total)
    return tl.where(norm == 0.0, float("-inf"), peak), norm, total


@triton.jit
def fold(peak, norm, total, more_peak, more_norm, more_total, mine):
    """Two partial softmaxes as one: peak and norm [M], total [M, D], fp32; the first alone where not ``mine`` [M].

    Choosing, not weighing with zero: a NaN of a block that a line does not attend to must not reach it.
    """
    take = mine & (more_peak != float("-inf"))
    grown = tl.maximum(peak, more_peak)
    unit = tl.where(take, grown, 0.0)
    old, new = tl.exp2(peak - unit), tl.exp2(more_peak - unit)
    norm = tl.where(take, tl.fma(norm, old, more_norm * new), norm)
    total = tl.where(take[:, None], tl.fma(total, old[:, None], more_total * new[:, None]), total)
    return tl.where(take, grown, peak), norm, total


@triton.jit
def nothing(M: tl.constexpr, BLOCK_D: tl.constexpr):
    """The softmax of M lines over no token: peak and norm [M], total [M, BLOCK_D], fp32."""
    peak = tl.full([M], float("-inf"), tl.float32)
    return peak, tl.zeros([M], tl.float32), tl.zeros([M, BLOCK_D], tl.float32)


@triton.jit
def as_operand(tile, cache, AXIS: tl.constexpr):
    """The tile in the dtype that products with this cache are made in, and what they are multiplied with afterwards.

    The dtype is the cache's own, or fp16 where that is fp8: it holds every e4m3 number, and one instruction makes two of
    them. A power of two for each vector along ``AXIS`` brings the tile into fp16's range; the second result takes it out
    again.
    """
    if cache.dtype.element_ty == tl.float8e4nv:
        wide = tile.to(tl.float32)
        exponent = (tl.max(tl.abs(wide), axis=AXIS).to(tl.uint32, bitcast=True) >> 23).to(tl.int32)
        # The largest number of a vector comes to lie between 2^10 and 2^11.
        up = tl.minimum(tl.maximum(264 - exponent, 2), 252)
        factor = (up << 23).to(tl.float32, bitcast=True)
        return (wide * tl.expand_dims(factor, AXIS)).to(tl.float16), ((254 - up) << 23).to(tl.float32, bitcast=True)
    else:
        ones = tl.full([tile.shape[1 - AXIS]], 1.0, tl.float32)
        return tile.to(cache.dtype.element_ty), ones


@triton.jit
def load_queries(q, row, head, real, HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Queries [M, BLOCK_D] of rows (int64) and heads [M]; zero where not ``real`` [M]."""
    dim = tl.arange(0, BLOCK_D)
    address = (row * HEADS + head)[:, None] * D + dim[None, :]
    return tl.load(q + address, mask=real[:, None] & (dim < D)[None, :], other=0.0)
