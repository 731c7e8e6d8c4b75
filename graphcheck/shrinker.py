"""Shrinking: the smallest plan that still fails in the same way, by greedy descent under a count of attempts."""

from __future__ import annotations

from collections.abc import Callable

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
