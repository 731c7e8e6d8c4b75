"""Device functions that the kernels share: the wait for earlier kernels, products, and a page's share of a softmax."""

from __future__ import annotations

import triton
import triton.language as tl


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
def page_step(peak, norm, total, queries, keys, values, seen, scale, MASKED: tl.constexpr, WIDE: tl.constexpr):
    """The running softmax (peak, norm [M], total [M, D], fp32) after one more page.

    Peaks are in units of log2. ``seen`` [P] bool: tokens that count, where ``MASKED``; values that do not count must
    be zero already.
    """
    logits = product(queries, tl.trans(keys.to(queries.dtype)), WIDE) * scale
    if MASKED:
        logits = tl.where(seen[None, :], logits, float("-inf"))
    grown = tl.maximum(peak, tl.max(logits, axis=1))
    # Nothing but -inf so far: subtracting it from itself would give NaN.
    grown = tl.where(grown == float("-inf"), 0.0, grown)
    weights = tl.exp2(logits - grown[:, None])
    shrink = tl.exp2(peak - grown)
    norm = norm * shrink + tl.sum(weights, axis=1)
    operand = weights.to(queries.dtype)
    part = product(operand, values.to(queries.dtype), WIDE)
    if MASKED and queries.dtype != tl.float32:
        # What rounding took from the weights. It shows in rows of few tokens, where it does not average out, and those
        # have masked pages only, at most two of them.
        rest = (weights - operand.to(tl.float32)).to(queries.dtype)
        part += product(rest, values.to(queries.dtype), WIDE)
    return grown, norm, total * shrink[:, None] + part


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
