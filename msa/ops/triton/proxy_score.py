"""Proxy scores as one kernel: each page of index keys is read once for all query rows of its request."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from msa.ops.triton.launch import check_aligned, launch_options, needs_wide, opaque, power_of_two
from msa.ops.triton.tile import (
    as_operand,
    dependency_wait,
    larger,
    load_page,
    load_queries,
    physical_page,
    product,
)

# Programs of a launch: a page is a program's smallest unit and pages share nothing, so none of these changes a bit. Up to
# SINGLE_PROGRAMS there is one for each page, which starts sooner; beyond that each takes at least two in a row: it streams,
# and the scores that it writes lie side by side.
SINGLE_PROGRAMS = 1024
PROGRAMS = 4096
# The place of a page is loaded two pages ahead of its keys, those as far ahead of their use.
STAGES = 5


@triton.jit
def _best(queries, keys, first, last, WIDE: tl.constexpr):
    """Maxima [M] of queries [M, BLOCK_D] over keys [N, BLOCK_D] of the tokens ``first`` and on, up to ``last`` [M]."""
    products = product(queries, tl.trans(keys.to(queries.dtype)), WIDE)
    seen = first + tl.arange(0, keys.shape[0])[None, :] <= last[:, None]
    # A live NaN must show: selection ranks it last.
    return tl.reduce(tl.where(seen, products, float("-inf")), 1, larger)


@triton.jit(do_not_specialize=["kv_lens", "page_table", "width", "score_rows", "pages"])
def _score_pages(
    scores,
    index_q,
    index_k,
    page_table,
    kv_lens,
    width,
    score_rows,
    pages,
    Q: tl.constexpr,
    HEADS: tl.constexpr,
    LINES: tl.constexpr,
    P: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SINGLE: tl.constexpr,
    STAGES: tl.constexpr,
    WIDE: tl.constexpr,
    PDL: tl.constexpr,
):
    dependency_wait(PDL)
    request = tl.program_id(0)
    own = tl.program_id(1)
    table = page_table + request.to(tl.int64) * width
    if SINGLE:
        # Before the length is known: what the table holds there may be anything, and is brought into the cache.
        physical = physical_page(table, own, own < width, pages)
    length = tl.load(kv_lens + request)
    count = tl.minimum((length + P - 1) // P, width)
    line = tl.arange(0, LINES)
    real = line < Q * HEADS
    # Line t * HEADS + h is row t of the request under index head h, which is how the queries lie in memory.
    last = length - Q + line // HEADS
    row = request.to(tl.int64) * Q + line // HEADS
    queries = load_queries(index_q, row * HEADS + line % HEADS, real, D, BLOCK_D)
    target = ((line % HEADS) * score_rows.to(tl.int64) + row) * width
    if own < count:
        operand, unit = as_operand(queries, index_k)
        if SINGLE:
            keys = load_page(index_k, physical, 1, 0, True, P, D, BLOCK_D, False)
            best = _best(operand, keys, own * P, last, WIDE)
            tl.store(scores + target + own, best * unit, mask=real & (own * P <= last))
        else:
            each = (count + tl.num_programs(1) - 1) // tl.num_programs(1)
            for page in tl.range(own * each, tl.minimum((own + 1) * each, count), num_stages=STAGES):
                physical = physical_page(table, page, True, pages)
                keys = load_page(index_k, physical, 1, 0, True, P, D, BLOCK_D, False)
                best = _best(operand, keys, page * P, last, WIDE)
                tl.store(scores + target + page, best * unit, mask=real & (page * P <= last))


def _proxy_score(
    scores: torch.Tensor,
    index_q: torch.Tensor,
    index_k: torch.Tensor,
    page_table: torch.Tensor,
    kv_lens: torch.Tensor,
    qo_len: int,
    pdl: bool,
) -> None:
    check_aligned(scores=scores, index_q=index_q, index_k=index_k)
    heads, score_rows, width = scores.shape
    batch = page_table.shape[0]
    pages, _, page_size, dim = index_k.shape
    single = batch * width <= SINGLE_PROGRAMS
    per_request = width if single else max(1, min(-(-width // 2), PROGRAMS // batch))
    _score_pages[(batch, per_request)](
        scores,
        index_q,
        index_k,
        page_table,
        kv_lens,
        width,
        score_rows,
        pages,
        Q=qo_len,
        HEADS=heads,
        LINES=power_of_two(qo_len * heads, 16),
        P=page_size,
        D=dim,
        BLOCK_D=power_of_two(dim, 16),
        SINGLE=single,
        STAGES=STAGES,
        WIDE=needs_wide(_score_pages, index_k.dtype),
        PDL=pdl,
        **launch_options(4, pdl),
    )


_operator = opaque(
    "proxy_score(Tensor(a!) scores, Tensor index_q, Tensor index_k, Tensor page_table, Tensor kv_lens, int qo_len, "
    "bool pdl) -> ()",
    _proxy_score,
)


def proxy_score(
    scores: torch.Tensor,
    index_q: torch.Tensor,
    index_k: torch.Tensor,
    page_table: torch.Tensor,
    kv_lens: torch.Tensor,
    qo_len: int,
    *,
    pdl: bool = False,
) -> None:
    """``scores[h, r, j]`` is the maximum of ``index_q[r, h] . index_k`` over the tokens of page j that row r sees.

    What `msa.ops.proxy_score` says holds here: pages that a row does not see keep the bits that ``scores`` had, a live
    NaN gives NaN, and an index scale is left out because it cannot change a ranking.

    One launch, grid (B, programs per request). Programs of a request share out its pages, up to its own length, so a
    capacity far above the live length costs nothing but empty programs. Where there is a program for every entry of the
    table, it reads its entry while the length is still on its way.

    Args:
        scores: [Hidx, rows >= B * Q, W] fp32, device; written in place.
        index_q: [B * Q, Hidx, D] any float dtype, device; converted to the keys' dtype (fp16 for fp8 keys).
        index_k: [pages, 1, P, D] bf16, fp16, fp32 or fp8 e4m3, device.
        page_table: [B, W] int32, device, contiguous; entries that no row sees may hold anything.
        kv_lens: [B] int32, device, tokens, the Q new ones included; 0 for padding rows.
        qo_len: Q.
        pdl: launch as a programmatic dependent of the kernel before.

    Read live: queries, keys, table and lengths. Frozen at capture: B, Q, W, all other shapes, and the grid.

    Source: the work split of vLLM, ``models/minimax_m3/common/ops/index_topk.py``.
    """
    _operator(scores, index_q, index_k, page_table, kv_lens, qo_len, pdl)
