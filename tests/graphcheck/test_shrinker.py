"""Shrinking ends at a local minimum and is bounded by a count."""

from __future__ import annotations

import pytest

from graphcheck.cases import Case, Contents, Lengths, PageTable
from graphcheck.plan import Plan
from graphcheck.shrinker import Shrinker, bisected


def plan_of(*rows: tuple[int, ...]) -> Plan:
    cases = tuple(Case(lens=Lengths(values, 0, 100), x=Contents("normal", 7)) for values in rows)
    return Plan(captures=(cases[0],), replays=cases, warmups=2)


def test_only_the_replay_that_matters_is_left_with_its_smallest_length() -> None:
    """A failure that needs one row of at least 37 ends at exactly 37, alone."""
    shrinker = Shrinker(lambda plan: any(max(case.fields["lens"].values) >= 37 for case in plan.replays))
    least = shrinker.shrink(plan_of((3, 90), (50, 60), (1, 2)))
    assert len(least.replays) == 1
    assert sorted(least.replays[0].fields["lens"].values) == [0, 37]
    assert least.warmups == 0
    assert least.captures[0].fields["lens"].values == (0, 0)
    assert least.replays[0].fields["x"] == Contents("normal", 0)


def test_a_pair_of_replays_is_kept_when_both_are_needed() -> None:
    def grows(plan: Plan) -> bool:
        longest = [max(case.fields["lens"].values) for case in plan.replays]
        return any(later > earlier for earlier, later in zip(longest, longest[1:], strict=False))

    least = Shrinker(grows).shrink(plan_of((5, 5), (9, 1), (2, 2), (70, 3)))
    assert [max(case.fields["lens"].values) for case in least.replays] == [0, 1]


def test_attempts_are_bounded_and_the_result_still_fails() -> None:
    shrinker = Shrinker(lambda plan: True, limit=3)
    shrinker.shrink(plan_of((100, 100), (100, 100)))
    assert shrinker.attempts == 3
    assert shrinker.exhausted


def test_page_tables_become_the_identity() -> None:
    case = Case(table=PageTable("permuted", 11, 2, 3, 6))
    least = Shrinker(lambda plan: True).shrink(Plan((case,), (case,), 0))
    assert least.replays[0].fields["table"] == PageTable("identity", 0, 2, 3, 6)


@pytest.mark.parametrize("smallest", [1, 12, 699, 4095])
def test_bisection_ends_at_the_smallest_length_that_fails_within_few_attempts(smallest: int) -> None:
    """Expected: one replay, one row at exactly that length, the others lowest; an attempt for each row and halving."""
    cases = tuple(Case(lens=Lengths((4095, length, 4000), 0, 4096)) for length in (7, 4095))
    attempts = []

    def fails(plan: Plan) -> bool:
        attempts.append(plan)
        return any(max(case.fields["lens"].values) >= smallest for case in plan.replays)

    small = bisected(Plan(cases[:1], cases), fails)
    assert [sorted(case.fields["lens"].values) for case in small.replays] == [[0, 0, smallest]]
    assert len(attempts) <= 1 + 3 + 12


def test_bisection_keeps_two_replays_where_one_is_not_enough() -> None:
    cases = tuple(Case(lens=Lengths((length,), 0, 64)) for length in (50, 40, 30))
    small = bisected(Plan(cases[:1], cases), lambda plan: len(plan.replays) > 1)
    assert [case.fields["lens"].values for case in small.replays] == [(0,), (0,)]
