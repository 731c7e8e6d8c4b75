"""Device functions that the kernels share: the wait for earlier kernels, pages and products, a page's softmax, sums of them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# Warps that share an attention tile, and its fewest lines: those of one row, as many as a product's instruction takes.
ATTENTION_WARPS = 4
LEAST_LINES = 16


def most_lines(dtype: torch.dtype) -> int:
    """The most lines of a tile, for caches of ``dtype``.

    A tile of 64 is multiplied by another instruction. It adds as the one of smaller tiles does, except that those of fp8
    caches take their tokens in another order.
    """
    return 64 if dtype.itemsize > 1 else 32


@triton.jit
def dependency_wait(PDL: tl.constexpr):
    """Everything that earlier kernels wrote is visible. First statement of a kernel, before any load of metadata."""
    if PDL:
        tl.extra.cuda.gdc_wait()
        # Later kernels may be scheduled from here on; their own wait lasts until this grid has ended.
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def product(left, right, WIDE: tl.constexpr):
    """Matrix product of two tiles of one dtype, accumulated in fp32; ``WIDE`` where the operands must be fp32."""
    if WIDE:
        return tl.dot(left.to(tl.float32), right.to(tl.float32), input_precision="ieee")
    return tl.dot(left, right, input_precision="ieee")


@triton.jit
def physical_page(table, page, wanted, pages):
    """Where logical pages lie, inside the cache whatever the table holds; any page where not ``wanted``."""
    return tl.minimum(tl.maximum(tl.load(table + page, mask=wanted, other=0), 0), pages - 1)


@triton.jit
def load_page(
    cache, page, heads, head, seen, P: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr
):
    """One head's tokens [P, BLOCK_D] in a page of a cache [pages, heads, P, D]; zero where ``MASKED`` and not ``seen`` [P]."""
    dim = tl.arange(0, BLOCK_D)
    start = (page.to(tl.int64) * heads + head) * (P * D)
    address = cache + start + tl.arange(0, P)[:, None] * D + dim[None, :]
    zero: tl.constexpr = 0 if cache.dtype.element_ty == tl.int16 else 0.0
    if MASKED:
        return tl.load(address, mask=(dim < D)[None, :] & seen[:, None], other=zero)
    if BLOCK_D == D:
        return tl.load(address)
    return tl.load(address, mask=(dim < D)[None, :], other=zero)


@triton.jit
def load_values(
    cache, page, heads, head, seen, P: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr
):
    """`load_page` for values: of fp8, whose bytes no instruction turns into columns, pairs as int16 [P, BLOCK_D / 2]."""
    if cache.dtype.element_ty == tl.float8e4nv:
        pairs = cache.to(tl.pointer_type(tl.int16), bitcast=True)
        return load_page(pairs, page, heads, head, seen, P, D // 2, BLOCK_D // 2, MASKED)
    else:
        return load_page(cache, page, heads, head, seen, P, D, BLOCK_D, MASKED)


# Two pairs of e4m3 numbers, one in each half of a register, as fp16: their first numbers, and their second ones.
_UNPACK = tl.constexpr(
    """{
    .reg .b16 one, other;
    .reg .b32 ones, others;
    mov.b32 {one, other}, $2;
    cvt.rn.f16x2.e4m3x2 ones, one;
    cvt.rn.f16x2.e4m3x2 others, other;
    prmt.b32 $0, ones, others, 0x5410;
    prmt.b32 $1, ones, others, 0x7632;
    }"""
)


@triton.jit
def _fp8(codes, dtype: tl.constexpr):
    """The e4m3 numbers whose codes are the low bytes of ``codes``."""
    return (codes & 0xFF).to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(dtype)


@triton.jit
def _weighted(weights, values, WIDE: tl.constexpr):
    """Sums [M, BLOCK_D] of values of `load_values` with weights [M, P]; of pairs, first ones come first: `columns`."""
    if values.dtype == tl.int16:
        if WIDE:
            first, second = _fp8(values, weights.dtype), _fp8(values >> 8, weights.dtype)
        else:
            first, second = tl.inline_asm_elementwise(
                _UNPACK, "=r,=r,r", [values], dtype=(tl.float16, tl.float16), is_pure=True, pack=2
            )
        first, second = product(weights, first, WIDE), product(weights, second, WIDE)
        both = tl.permute(tl.join(first, second), (0, 2, 1))
        return tl.reshape(both, [weights.shape[0], 2 * values.shape[1]])
    else:
        return product(weights, values.to(weights.dtype), WIDE)


@triton.jit
def columns(v_cache, BLOCK_D: tl.constexpr):
    """Which dimension each column of a total holds, [BLOCK_D] int32."""
    column = tl.arange(0, BLOCK_D)
    if v_cache.dtype.element_ty == tl.float8e4nv:
        return column % (BLOCK_D // 2) * 2 + column // (BLOCK_D // 2)
    else:
        return column


@triton.jit
def larger(left, right):
    """The larger of two numbers, NaN if one is."""
    return tl.maximum(left, right, propagate_nan=tl.PropagateNan.ALL)


@triton.constexpr_function
def norm_columns(lines):
    """Columns C of a tile's norms.

    The compiler gives each warp some columns of a product with more columns than lines, and lines otherwise. It does the
    former with weights and totals up to 32 lines, and all products of a tile must agree.
    """
    return 2 * lines if lines <= 32 else 32


@triton.jit
def weigh(raw, scale):
    """Peaks [M] and weights [M, P], fp32, of products [M, P] that are multiplied with ``scale`` [M].

    Peaks are in units of log2, -inf where nothing has weight. Product and sum are written as ``fma``, so that no compiler
    decides about a bit.
    """
    top = tl.reduce(raw, 1, larger) * scale
    # Nothing but -inf, or a NaN: subtracting it from itself would give NaN, or hide one.
    peak = tl.where(top > float("-inf"), top, 0.0)
    weights = tl.exp2(tl.fma(raw, tl.broadcast_to(scale[:, None], raw.shape), -peak[:, None]))
    return tl.where(top == float("-inf"), top, peak), weights


@triton.jit
def page_softmax(queries, keys, values, seen, scale, few, MASKED: tl.constexpr, WIDE: tl.constexpr):
    """The softmax of lines [M, BLOCK_D] over a page's tokens: peak [M], norm [M, C] and total [M, BLOCK_D] (`columns`), fp32.

    Peaks are those of `weigh`; the columns of a norm are alike. ``scale`` [M] is what a line's products are multiplied
    with. Where ``MASKED``, ``seen`` [M, P] says which tokens count, and ``few`` that lines see so few tokens that the rounding
    of their weights would not average out.
    """
    raw = product(queries, tl.trans(keys.to(queries.dtype)), WIDE)
    if MASKED:
        raw = tl.where(seen, raw, float("-inf"))
    peak, weights = weigh(raw, scale)
    operand = weights.to(queries.dtype)
    total = _weighted(operand, values, WIDE)
    # A product sums in an order of its own, whoever holds the tile; a reduction's follows from the warps that share it.
    ones = tl.full([keys.shape[0], norm_columns(queries.shape[0])], 1.0, queries.dtype)
    norm = product(operand, ones, WIDE)
    if MASKED and queries.dtype != tl.float32:  # noqa: SIM102 - decided when it is compiled
        if few:
            rest = (weights - operand.to(tl.float32)).to(queries.dtype)
            total += _weighted(rest, values, WIDE)
            norm += product(rest, ones, WIDE)
    return peak, norm, total


@triton.jit
def fold(peak, norm, total, more_peak, more_norm, more_total, mine):
    """Two partial softmaxes as one: peak [M], norm [M, C], total [M, D], fp32; the first alone where not ``mine`` [M].

    Choosing, not weighing with zero: a NaN of a page that a line does not attend to must not reach it.
    """
    take = mine & (more_peak != float("-inf"))
    grown = tl.maximum(peak, more_peak)
    unit = tl.where(take, grown, 0.0)
    old, new = tl.exp2(peak - unit)[:, None], tl.exp2(more_peak - unit)[:, None]
    norm = tl.where(take[:, None], tl.fma(norm, old, more_norm * new), norm)
    total = tl.where(take[:, None], tl.fma(total, old, more_total * new), total)
    return tl.where(take, grown, peak), norm, total


@triton.jit
def nothing(M: tl.constexpr, C: tl.constexpr, BLOCK_D: tl.constexpr):
    """The softmax of M lines over no token: peak [M], norm [M, C], total [M, BLOCK_D], fp32."""
    peak = tl.full([M], float("-inf"), tl.float32)
    return peak, tl.zeros([M, C], tl.float32), tl.zeros([M, BLOCK_D], tl.float32)


@triton.jit
def as_operand(lines, cache):
    """Lines [M, BLOCK_D] in the dtype that products with this cache are made in, and what those are multiplied with [M].

    The dtype is the cache's own, or fp16 where that is fp8: it holds every e4m3 number, and one instruction makes two of
    them. A power of two for each line brings it into fp16's range; the second result takes it out again.
    """
    if cache.dtype.element_ty == tl.float8e4nv:
        wide = lines.to(tl.float32)
        exponent = (tl.max(tl.abs(wide), axis=1).to(tl.uint32, bitcast=True) >> 23).to(tl.int32)
        # The largest number of a line comes to lie between 2^10 and 2^11.
        up = tl.minimum(tl.maximum(264 - exponent, 2), 252)
        factor = (up << 23).to(tl.float32, bitcast=True)
        return (wide * factor[:, None]).to(tl.float16), ((254 - up) << 23).to(tl.float32, bitcast=True)
    else:
        return lines.to(cache.dtype.element_ty), tl.full([lines.shape[0]], 1.0, tl.float32)


@triton.jit
def load_queries(q, line, real, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Queries [M, BLOCK_D] of lines [M] (int64, row times heads plus head); zero where not ``real`` [M]."""
    dim = tl.arange(0, BLOCK_D)
    return tl.load(q + line[:, None] * D + dim[None, :], mask=real[:, None] & (dim < D)[None, :], other=0.0)
