"""Device functions that the kernels share: the wait for earlier kernels, products, a page's softmax and sums of them."""

from __future__ import annotations

import triton
import triton.language as tl

# Lines (query rows times heads) of an attention tile. Always as many: a product's hardware instruction, and with it the
# order in which a line's sums are made, must not follow from how many rows share a step.
TILE_LINES = 64
ATTENTION_WARPS = 4


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
def page_address(page, heads, head, P: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Offsets int64 [P, BLOCK_D] of one head's tokens in a cache [pages, heads, P, D]."""
    start = (page.to(tl.int64) * heads + head) * (P * D)
    return start + tl.arange(0, P)[:, None] * D + tl.arange(0, BLOCK_D)[None, :]


@triton.jit
def load_page(cache, address, seen, D: tl.constexpr, BLOCK_D: tl.constexpr, MASKED: tl.constexpr):
    """Tokens [P, BLOCK_D] of a page; what is not ``seen`` [P] is zero where ``MASKED``."""
    if MASKED:
        inside = (tl.arange(0, BLOCK_D) < D)[None, :] & seen[:, None]
        return tl.load(cache + address, mask=inside, other=0.0)
    if BLOCK_D == D:
        return tl.load(cache + address)
    return tl.load(cache + address, mask=(tl.arange(0, BLOCK_D) < D)[None, :], other=0.0)


@triton.jit
def page_softmax(queries, keys, values, seen, scale, MASKED: tl.constexpr, WIDE: tl.constexpr):
    """The softmax of lines [M, BLOCK_D] over one page: peak, norm [M] and total [M, BLOCK_D], fp32.

    Peaks are in units of log2, -inf where nothing has weight. ``seen`` [P] bool: tokens that count, where ``MASKED``;
    values that do not count must be zero already. Products and sums are written as ``fma`` where they may be one, so that
    no compiler decides about a bit.
    """
    raw = product(queries, tl.trans(keys.to(queries.dtype)), WIDE)
    if MASKED:
        raw = tl.where(seen[None, :], raw, float("-inf"))
    peak = tl.max(raw, axis=1) * scale
    # Nothing but -inf or NaN: subtracting it from itself would give NaN, or hide one.
    peak = tl.where(peak > float("-inf"), peak, 0.0)
    weights = tl.exp2(tl.fma(raw, scale, -peak[:, None]))
    norm = tl.sum(weights, axis=1)
    operand = weights.to(queries.dtype)
    total = product(operand, values.to(queries.dtype), WIDE)
    if MASKED and queries.dtype != tl.float32:
        # What rounding took from the weights. It shows in rows of few tokens, where it does not average out, and those
        # have a masked page only.
        rest = (weights - operand.to(tl.float32)).to(queries.dtype)
        total += product(rest, values.to(queries.dtype), WIDE)
    return tl.where(norm == 0.0, float("-inf"), peak), norm, total


@triton.jit
def fold(peak, norm, total, more_peak, more_norm, more_total, mine):
    """Two partial softmaxes as one: peak and norm [M], total [M, D], fp32; the first alone where not ``mine`` [M].

    Choosing, not weighing with zero: a NaN of a page that a line does not attend to must not reach it.
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
def as_operand(tile, cache):
    """The tile in the dtype that products with this cache are made in: the cache's own, or bf16 where that is fp8."""
    if cache.dtype.element_ty == tl.float8e4nv:
        return tile.to(tl.bfloat16)
    else:
        return tile.to(cache.dtype.element_ty)


@triton.jit
def load_queries(q, row, head, real, HEADS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Queries [M, BLOCK_D] of rows (int64) and heads [M]; zero where not ``real`` [M]."""
    dim = tl.arange(0, BLOCK_D)
    address = (row * HEADS + head)[:, None] * D + dim[None, :]
    return tl.load(q + address, mask=real[:, None] & (dim < D)[None, :], other=0.0)
