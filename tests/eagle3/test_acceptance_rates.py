"""Acceptance rate and length from counts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3 import Acceptance
from eagle3.acceptance import expected_length
from eagle3.errors import ShapeMismatch


def test_the_rates_of_a_small_sample():
    acceptance = Acceptance()
    acceptance.add([1, 4, 2, 0, 3], 3)
    assert acceptance.steps == 4 and acceptance.drafted == 12 and acceptance.accepted == 6
    assert acceptance.rate == 0.5 and acceptance.length == 2.5
    assert acceptance.rates == [0.75, 0.5, 0.25]
    assert acceptance.conditional_rates == [0.75, 2 / 3, 0.5]
    assert str(acceptance) == "AR 0.500, AL 2.500 over 4 steps, by position: 0.750 0.500 0.250"


@given(st.integers(1, 6).flatmap(lambda most: st.tuples(st.just(most), st.lists(st.integers(1, most + 1), min_size=1))))
@settings(max_examples=60, deadline=None)
def test_at_one_draft_length_rate_and_length_are_one_number(sample):
    draft_len, counts = sample
    acceptance = Acceptance()
    acceptance.add(counts, draft_len)
    assert math.isclose(acceptance.rate, (acceptance.length - 1) / draft_len)
    assert math.isclose(sum(acceptance.rates) + 1, acceptance.length)
    assert math.isclose(acceptance.length, sum(counts) / len(counts))
    assert 1 <= acceptance.length <= draft_len + 1
    assert acceptance.rates == sorted(acceptance.rates, reverse=True)
    product = 1.0
    for rate, conditional in zip(acceptance.rates, acceptance.conditional_rates, strict=True):
        product = product * conditional if rate else 0.0
        assert math.isclose(rate, product)


@pytest.mark.parametrize(
    ("rate", "length"), [(0.465, 2.40), (0.698, 3.094), (0.718, 3.153), (0.707, 3.121), (0.719, 3.156)]
)
def test_published_pairs_obey_the_relation(rate, length):
    """Figures of MiniMax-M3 with three drafts, as published with two and three decimals."""
    assert abs((length - 1) / 3 - rate) < 0.0025


def test_lengths_that_change_between_steps():
    acceptance = Acceptance()
    acceptance.add([4, 1], 3)
    acceptance.add([2], 1)
    acceptance.add([1, 1], 0)
    assert acceptance.steps == 5 and acceptance.drafted == 7 and acceptance.accepted == 4
    assert acceptance.reached == [3, 2, 2] and acceptance.asked == [3, 1, 1]
    assert acceptance.rates == [2 / 3, 0.5, 0.5] and acceptance.conditional_rates == [2 / 3, 1.0, 1.0]


def test_nothing_measured_is_no_number():
    acceptance = Acceptance()
    assert math.isnan(acceptance.rate) and math.isnan(acceptance.length)
    acceptance.add([0, 0], 3)
    assert acceptance.steps == 0


@pytest.mark.parametrize("count", [-1, 5])
def test_a_count_out_of_range_is_refused_and_nothing_is_counted(count):
    acceptance = Acceptance()
    with pytest.raises(ShapeMismatch, match=f"row 1: {count}"):
        acceptance.add([1, count], 3)
    assert acceptance.steps == 0 and acceptance.reached == []


def test_independent_acceptance():
    assert expected_length(0.0, 3) == 1 and expected_length(1.0, 3) == 4
    assert math.isclose(expected_length(0.7, 3), (1 - 0.7**4) / (1 - 0.7))
