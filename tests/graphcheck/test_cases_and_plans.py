"""Cases and plans: through JSON unchanged, drawn in range, malformed input refused in words."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcheck import batch, case, contents, integers, lengths, page_tables
from graphcheck.cases import Case, Contents, Lengths, PageTable
from graphcheck.errors import MalformedFile, PlanError, UsageError
from graphcheck.plan import Plan
from graphcheck.strategies import boundaries, plans

ANY = case(
    lens=lengths(rows=4, low=0, high=100, page=16, qo_len=4),
    x=contents(),
    table=page_tables(4, 6, 24),
    size=batch(4),
    step=integers(-2, 3),
    flag=st.booleans(),
    name=st.sampled_from(["a", "b"]),
)


@settings(max_examples=60, deadline=None)
@given(plans(ANY, lambda drawn: drawn.flag, 2))
def test_a_plan_survives_json_and_stays_in_range(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()) == plan
    assert len(plan.replays) >= 3
    assert len({drawn.flag for drawn in plan.captures}) == len(plan.captures)
    for drawn in (*plan.captures, *plan.replays):
        assert drawn.lens.dtype is torch.int32
        assert int(drawn.lens.min()) >= 0 and int(drawn.lens.max()) <= 100
        assert 1 <= drawn.size <= 4
        assert -2 <= drawn.step <= 3


@settings(max_examples=40, deadline=None)
@given(ANY)
def test_simpler_cases_stay_in_the_domain(drawn: Case) -> None:
    for simpler in drawn.simpler():
        assert simpler != drawn
        assert Case.from_json(simpler.to_json()) == simpler


def test_lengths_hit_the_boundaries() -> None:
    """Expected: 0, 1, below the query length, around the page and the capacity all come up in a hundred draws."""
    seen: set[int] = set()

    @settings(max_examples=200, deadline=None, database=None, derandomize=True)
    @given(lengths(rows=4, low=0, high=64, page=16, qo_len=4))
    def draw(value: Lengths) -> None:
        seen.update(value.values)

    draw()
    assert {0, 1, 3, 15, 16, 17, 63, 64} <= seen
    assert boundaries(5, 20, page=16, qo_len=4) == [5, 6, 15, 16, 17, 19, 20]


@pytest.mark.parametrize("kind", ["normal", "ramp", "ties", "extremes"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_contents_follow_from_class_and_seed_and_rows_differ(kind: str, dtype: torch.dtype) -> None:
    first, again, other = (torch.empty(8, 512, dtype=dtype) for _ in range(3))
    Contents(kind, 3).fill(first)
    Contents(kind, 3).fill(again)
    Contents(kind, 4).fill(other)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    for row in range(1, 8):
        assert not torch.equal(first[0], first[row])


def test_page_tables_are_permutations_and_shared_prefixes_are_shared() -> None:
    for kind in ("identity", "reversed", "permuted"):
        assert PageTable(kind, 5, 4, 6, 24).tensor().unique().numel() == 24
    shared = PageTable("shared", 4, 4, 6, 24).tensor()
    assert bool((shared[:, 0] == shared[0, 0]).all())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "must be an object"),
        ({"captures": [], "warmups": 2, "replays": []}, "at least one capture"),
        ({"captures": [{}], "replays": []}, "lacks warmups"),
        ({"captures": [{"x": {"contents": "odd", "seed": 1}}], "warmups": 1, "replays": []}, "no contents of class"),
        (
            {"captures": [{"x": {"lengths": [9], "low": 0, "high": 5}}], "warmups": 1, "replays": []},
            "leave their range",
        ),
        (
            {"captures": [{"x": {"lengths": "many", "low": 0, "high": 5}}], "warmups": 1, "replays": []},
            "invalid literal",
        ),
        ({"captures": [{"x": 3}], "warmups": 1, "replays": []}, "no known field"),
        ({"captures": [{}], "warmups": "two", "replays": []}, "whole number"),
        ({"captures": [{}], "warmups": -1, "replays": []}, "warm-ups"),
    ],
)
def test_a_malformed_plan_is_refused_in_words(data: object, words: str) -> None:
    with pytest.raises(MalformedFile, match=words):
        Plan.from_json(data)


def test_impossible_strategies_are_usage_errors() -> None:
    for make in (
        lambda: lengths(rows=0),
        lambda: lengths(rows=2, low=9, high=3),
        lambda: contents(("odd",)),
        lambda: page_tables(2, 9, 4),
        lambda: integers(3, 2),
        lambda: case(x=3),  # type: ignore[arg-type]
    ):
        with pytest.raises(UsageError):
            make()
    with pytest.raises(PlanError):
        Plan((), ())


def test_a_field_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(AttributeError, match="it has: lens"):
        Case(lens=Lengths((1,), 0, 2)).length  # noqa: B018


def test_a_value_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(MalformedFile, match="cannot be written as JSON"):
        Case(x=object()).through_json()
