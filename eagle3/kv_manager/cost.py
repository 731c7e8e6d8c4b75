"""What caches cost, and how a budget is split between target and draft."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3.errors import BudgetInfeasible
from eagle3.lengths import extra_kv_tokens


@dataclass(frozen=True)
class Cost:
    """Bytes of a pool, affine in its tokens: ``slope * tokens + intercept``."""

    slope: int = 0
    intercept: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.slope + other.slope, self.intercept + other.intercept)

    def bytes(self, tokens: int) -> int:
        """Bytes of a pool of ``tokens`` tokens."""
        return self.slope * tokens + self.intercept

    def tokens(self, budget: int) -> int:
        """Most tokens that ``budget`` bytes hold."""
        return max(budget - self.intercept, 0) // self.slope if self.slope else 0


def split_budget(budget: int, target: Cost, draft: Cost) -> tuple[int, int]:
    """Bytes for target and draft, together ``budget``, so that both pools hold as many tokens.

    Raises:
        BudgetInfeasible: what both cost without a token exceeds the budget.
    """
    free = budget - target.intercept - draft.intercept
    if free < 0:
        raise BudgetInfeasible(
            f"caches need {target.intercept} + {draft.intercept} bytes (target + draft) before the first token, "
            f"the budget is {budget}; raise it, or make pages smaller"
        )
    slope = target.slope + draft.slope
    share = draft.intercept + free * draft.slope // slope if slope else draft.intercept
    return budget - share, share


def split_host_budget(budget: int, target: Cost, draft: Cost) -> tuple[int, int]:
    """Bytes of host memory for target and draft, by what a token costs: copies of pages have no fixed part."""
    return split_budget(budget, Cost(target.slope), Cost(draft.slope))


def dummy_tokens(length: int, draft_len: int, *, overlap: bool) -> int:
    """Tokens that a dummy request of this length takes while memory is estimated.

    Under overlap a step is in flight beside the one that is granted.
    """
    steps = 2 if overlap else 1
    return length + steps * (1 + draft_len) + extra_kv_tokens(draft_len)


def warmup_pages(max_seq_len: int, page_size: int, graph_batch: int) -> int:
    """Least pages of a pool for graph warm-up: one request as long as any, and a page for each other dummy."""
    return -(-(max_seq_len + 1) // page_size) + graph_batch - 1


def admitted_seq_len(max_seq_len: int, extra_tokens: int, capacity: int) -> int:
    """Longest sequence to admit, tokens: ``max_seq_len``, or less where it and the extra tokens exceed the capacity."""
    return min(max_seq_len, capacity - extra_tokens)
