"""Page selection as one kernel: the total order of `msa.ops.select_pages`, one program per row and head."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from msa.errors import GeometryError
from msa.ops.triton.launch import check_aligned, launch_options, opaque, power_of_two
from msa.ops.triton.tile import dependency_wait

MOST_WIDTH = 8192


@triton.jit
def _keys(scores, page, valid, init_pages, local_pages):
    """Keys uint32 in the order of preference: forced, score, NaN (1), no page (0). Equal keys go to the lower page."""
    value = tl.load(scores + page, mask=page < valid, other=0.0)
    # Integer order of the bits is float order once negative numbers are flipped. -0 equals +0.
    bits = tl.where(value == 0.0, 0.0, value).to(tl.uint32, bitcast=True)
    key = tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits | 0x80000000)
    key = tl.where(value != value, 1, key).to(tl.uint32)
    forced = (page < init_pages) | (page >= valid - local_pages)
    key = tl.where(forced, 0xFFFFFFFF, key).to(tl.uint32)
    return tl.where(page < valid, key, 0).to(tl.uint32)


@triton.jit
def _emit(page_ids, page, selected, K: tl.constexpr):
    """The selected pages stand first, ascending; what is behind them has been written before."""
    taken = selected.to(tl.int32)
    place = tl.cumsum(taken, 0) - taken
    tl.store(page_ids + place, page, mask=selected & (place < K))


@triton.jit
def _by_rank(page_ids, scores, valid, init_pages, local_pages, K: tl.constexpr, BLOCK: tl.constexpr):
    """Few pages: a page is selected if fewer than K pages are better."""
    mine = tl.arange(0, BLOCK)
    own = _keys(scores, mine, valid, init_pages, local_pages)
    key, other = own[:, None], own[None, :]
    better = (other > key) | ((other == key) & (mine[None, :] < mine[:, None]))
    rank = tl.sum(better.to(tl.int32), axis=1)
    _emit(page_ids, mine, (rank < K) & (mine < valid), K)


@triton.jit
def _by_threshold(page_ids, scores, valid, init_pages, local_pages, K: tl.constexpr, BLOCK: tl.constexpr):
    """Many pages (more than K): the key of the K-th best is found bit by bit, ties go to the lower pages."""
    page = tl.arange(0, BLOCK)
    key = _keys(scores, page, valid, init_pages, local_pages)
    threshold = tl.zeros([], tl.uint32)
    bit = tl.full([], 0x80000000, tl.uint32)
    while bit > 0:
        candidate = threshold | bit
        count = tl.sum((key >= candidate).to(tl.int32), axis=0)
        threshold = tl.where(count >= K, candidate, threshold).to(tl.uint32)
        # Exactly K keys reach it: lower bits cannot change the set.
        bit = tl.where(count == K, 0, bit >> 1).to(tl.uint32)
    above = key > threshold
    tied = key == threshold
    order = tl.cumsum(tied.to(tl.int32), 0)
    missing = K - tl.sum(above.to(tl.int32), axis=0)
    _emit(page_ids, page, above | (tied & (order <= missing)), K)


@triton.jit(do_not_specialize=["valid_pages", "width", "score_rows"])
def _select(
    page_ids,
    scores,
    valid_pages,
    width,
    score_rows,
    INIT: tl.constexpr,
    LOCAL: tl.constexpr,
    K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SMALL: tl.constexpr,
    MIDDLE: tl.constexpr,
    LARGE: tl.constexpr,
    PDL: tl.constexpr,
):
    dependency_wait(PDL)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    valid = tl.minimum(tl.maximum(tl.load(valid_pages + row), 0), width)
    source = scores + (head * score_rows.to(tl.int64) + row) * width
    target = page_ids + (row * tl.num_programs(1) + head) * K
    slot = tl.arange(0, BLOCK_K)
    # Selected pages and -1 go to different slots, so nothing has to be ordered between the stores.
    tl.store(target + slot, tl.full([BLOCK_K], -1, tl.int32), mask=(slot < K) & (slot >= valid))
    # The live count picks the amount of work; the set does not depend on the way it is found.
    if valid <= SMALL:
        _by_rank(target, source, valid, INIT, LOCAL, K, SMALL)
    elif valid <= MIDDLE:
        _by_threshold(target, source, valid, INIT, LOCAL, K, MIDDLE)
    else:
        _by_threshold(target, source, valid, INIT, LOCAL, K, LARGE)


def _select_pages(
    page_ids: torch.Tensor,
    scores: torch.Tensor,
    valid_pages: torch.Tensor,
    init_pages: int,
    local_pages: int,
    pdl: bool,
) -> None:
    check_aligned(page_ids=page_ids, scores=scores)
    rows, heads, top_k = page_ids.shape
    width = scores.shape[2]
    if width > MOST_WIDTH:
        raise GeometryError(
            f"a row of the page table has {width} entries, the kernel selects among at most {MOST_WIDTH}; "
            "lower max_pages or use the portable operator"
        )
    large = power_of_two(width, 16)
    # Ranking compares every pair, which is a single pass for few pages; it must cover K for the threshold to exist.
    small = min(large, power_of_two(top_k, 128))
    _select[(rows, heads)](
        page_ids,
        scores,
        valid_pages,
        width,
        scores.shape[1],
        INIT=init_pages,
        LOCAL=local_pages,
        K=top_k,
        BLOCK_K=power_of_two(top_k),
        SMALL=small,
        MIDDLE=min(large, 8 * small),
        LARGE=large,
        PDL=pdl,
        **launch_options(4, pdl),
    )


_operator = opaque(
    "select_pages(Tensor(a!) page_ids, Tensor scores, Tensor valid_pages, int init_pages, int local_pages, bool pdl) "
    "-> ()",
    _select_pages,
)


def select_pages(
    page_ids: torch.Tensor,
    scores: torch.Tensor,
    valid_pages: torch.Tensor,
    init_pages: int,
    local_pages: int,
    *,
    pdl: bool = False,
) -> None:
    """``page_ids[r, h]`` holds the selected logical pages of row r in ascending order, then -1.

    The total order of `msa.ops.select_pages`, bit for bit: forced pages, higher scores (-0 equals +0, NaN is lowest),
    lower pages. Scores at and beyond ``valid_pages[r]`` are not looked at. Nothing is tuned at run time.

    One launch, grid (T, Hkv). Up to 128 valid pages are ranked by comparing every pair; above, the K-th best key is
    found by bisection over its 32 bits, in a tile of 1024 pages or of the capacity.

    Args:
        page_ids: [T, Hkv, K] int32, device; written in place.
        scores: [Hkv, rows >= T, W] fp32, device; W <= 8192.
        valid_pages: [T] int32, device, 0..W.
        pdl: launch as a programmatic dependent of the kernel before.

    Read live: scores and counts. Frozen at capture: T, W, K and the numbers of forced pages.

    Raises:
        GeometryError: W is above 8192.
    """
    _operator(page_ids, scores, valid_pages, init_pages, local_pages, pdl)
