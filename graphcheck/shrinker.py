"""Shrinking: the smallest plan that still fails in the same way, by greedy descent under a count of attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from graphcheck.cases import Case, Lengths
from graphcheck.plan import Plan

LIMIT = 600


class Shrinker:
    """Shrinks a failing plan until no simpler neighbour fails.

    At the end no single replay can be dropped and no length halved without losing the failure, unless the count of
    attempts ran out. Only counts bound it, never seconds, so the same plan shrinks the same way everywhere.

    Args:
        fails: whether a plan shows the failure that is being shrunk.
        limit: attempts at most.
    """

    def __init__(self, fails: Callable[[Plan], bool], limit: int = LIMIT) -> None:
        self.fails = fails
        self.limit = limit
        self.attempts = 0
        self.exhausted = False
        self._known: dict[str, bool] = {}

    def shrink(self, plan: Plan) -> Plan:
        """The local minimum below ``plan``, which must fail."""
        progress = True
        while progress:
            progress = False
            for candidate in plan.simpler():
                if self._still_fails(candidate):
                    plan = candidate
                    progress = True
                    break
                if self.exhausted:
                    return plan
        return plan

    def _still_fails(self, plan: Plan) -> bool:
        digest = plan.digest
        if digest not in self._known:
            if self.attempts >= self.limit:
                self.exhausted = True
                return False
            self.attempts += 1
            self._known[digest] = self.fails(plan)
        return self._known[digest]


def bisected(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """A failing plan with one replay where that is enough, and every length as small as bisection makes it.

    Few attempts: one for the replays, one for each row of lengths, then one for each halving of a range.

    Args:
        plan: fails.
        fails: whether a plan does.
    """
    for count in (1, 2):
        shorter = replace(plan, replays=plan.replays[-count:])
        if len(plan.replays) > count and fails(shorter):
            plan = shorter
            break
    for number, name, row in list(_lengths(plan)):
        lengths = plan.replays[number].fields[name]
        low, high = lengths.low, lengths.values[row]
        if low == high:
            continue
        if fails(_with_length(plan, number, name, row, low)):
            plan = _with_length(plan, number, name, row, low)
            continue
        # `high` fails and `low` does not.
        while high - low > 1:
            middle = (low + high) // 2
            if fails(_with_length(plan, number, name, row, middle)):
                high = middle
            else:
                low = middle
        plan = _with_length(plan, number, name, row, high)
    return plan


def _lengths(plan: Plan) -> Iterator[tuple[int, str, int]]:
    """Replay number, field name and row of every length of the plan."""
    for number, case in enumerate(plan.replays):
        for name, value in case.fields.items():
            if isinstance(value, Lengths):
                yield from ((number, name, row) for row in range(len(value.values)))


def _with_length(plan: Plan, number: int, name: str, row: int, length: int) -> Plan:
    case: Case = plan.replays[number]
    lengths = case.fields[name]
    values = (*lengths.values[:row], length, *lengths.values[row + 1 :])
    changed = case.replaced(**{name: replace(lengths, values=values)})
    return replace(plan, replays=(*plan.replays[:number], changed, *plan.replays[number + 1 :]))
