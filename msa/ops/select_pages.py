"""Page selection: forced pages, then the best by score, in a total order."""

from __future__ import annotations

import torch

from graphcheck.contract import capture_safe
from msa.geometry import MOST_PAGES
from msa.ops.library import operator

_NAN_KEY = -(2**31)  # below the key of -inf
_FORCED_KEY = 2**31  # above the key of +inf
_INVALID_KEY = -(2**31) - 1


def _select_pages(
    page_ids: torch.Tensor, scores: torch.Tensor, valid_pages: torch.Tensor, init_pages: int, local_pages: int
) -> None:
    rows, _, top_k = page_ids.shape
    width = scores.shape[2]
    columns = torch.arange(width, device=scores.device)
    valid = valid_pages.view(1, rows, 1)
    # Adding zero turns -0 into +0. Integer order of the remaining bits is float order once negative ones are flipped.
    plain = scores.narrow(1, 0, rows) + 0.0
    pattern = plain.view(torch.int32)
    key = torch.where(pattern < 0, pattern ^ 0x7FFFFFFF, pattern).to(torch.int64)
    key.masked_fill_(plain.ne(plain), _NAN_KEY)
    forced = columns >= valid - local_pages
    if init_pages:
        forced = forced | (columns < init_pages)
    key.masked_fill_(forced, _FORCED_KEY)
    key.masked_fill_(columns >= valid, _INVALID_KEY)
    # No two keys are equal, because the page is part of it: lower pages first.
    key = key * MOST_PAGES + (MOST_PAGES - 1 - columns)
    taken = min(top_k, width)
    best = key.topk(taken, dim=2, sorted=False).indices
    best.masked_fill_(best >= valid, MOST_PAGES)
    best = best.sort(dim=2).values
    best.masked_fill_(best == MOST_PAGES, -1)
    page_ids.narrow(2, 0, taken).copy_(best.permute(1, 0, 2))
    if taken < top_k:
        page_ids.narrow(2, taken, top_k - taken).fill_(-1)


_operator = operator(
    "select_pages(Tensor(a!) page_ids, Tensor scores, Tensor valid_pages, int init_pages, int local_pages) -> ()",
    _select_pages,
)


@capture_safe(dynamic=("scores", "valid_pages"), static=("init_pages", "local_pages"), out=("page_ids",))
def select_pages(
    page_ids: torch.Tensor,
    scores: torch.Tensor,
    valid_pages: torch.Tensor,
    init_pages: int,
    local_pages: int,
) -> None:
    """``page_ids[r, h]`` holds the selected logical pages of row r in ascending order, then -1.

    Pages below ``valid_pages[r]`` compete: the first ``init_pages`` and the last ``local_pages`` of them come first,
    then higher scores (-0 equals +0, NaN is lowest), then lower pages. A row with at most K valid pages gets all of
    them. Scores at and beyond ``valid_pages[r]`` are not looked at.

    Args:
        page_ids: [T, Hkv, K] int32, device; written in place.
        scores: [Hkv, rows >= T, W] fp32, device, contiguous; W <= 2**20.
        valid_pages: [T] int32, device, 0..W.

    Read live: scores and counts. Frozen at capture: T, W, K and the numbers of forced pages.
    """
    _operator(page_ids, scores, valid_pages, init_pages, local_pages)
