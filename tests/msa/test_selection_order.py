"""Selection follows one total order: forced pages, score descending, lower page first."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from msa.ops import select_pages
from msa.reference import select

torch.set_num_threads(1)

SCORES = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 3e38, -3e38, 1e-45]),
    st.floats(width=32, allow_nan=True),
)


def choose(rows: list[list[float]], valid: list[int], top_k: int, init: int = 0, local: int = 1) -> list[list[int]]:
    scores = torch.tensor([rows], dtype=torch.float32)
    ids = torch.full((len(rows), 1, top_k), -7, dtype=torch.int32)
    select_pages(ids, scores, torch.tensor(valid, dtype=torch.int32), init, local)
    return ids[:, 0].tolist()


@settings(max_examples=150, deadline=None)
@given(st.lists(SCORES, min_size=1, max_size=24), st.integers(0, 24), st.integers(2, 6), st.integers(0, 1))
def test_it_equals_an_independent_sort(scores, valid, top_k, init):
    valid = min(valid, len(scores))
    expected = select([float(torch.tensor(score)) for score in scores[:valid]], top_k, init, 1)
    assert choose([scores], [valid], top_k, init) == [expected + [-1] * (top_k - len(expected))]


def test_equal_scores_go_to_the_lower_page():
    assert choose([[5.0] * 9], [9], 4) == [[0, 1, 2, 8]]


def test_minus_zero_equals_zero():
    assert choose([[-0.0, 0.0, -0.0, 0.0, -1.0]], [5], 3) == [[0, 1, 4]]


def test_nan_is_below_minus_infinity():
    assert choose([[math.nan, -math.inf, math.nan, 0.0]], [4], 2) == [[1, 3]]
    assert choose([[math.nan, math.nan, math.nan, 0.0]], [4], 3) == [[0, 1, 3]]


def test_nan_with_a_sign_and_a_payload_is_still_lowest():
    patterns = torch.tensor([0x7FC00000, -0x400000, 0x7F800001, 0x7FFFFFFF, 0], dtype=torch.int32)
    scores = patterns.view(torch.float32).view(1, 1, 5)
    scores = torch.cat([scores, torch.full((1, 1, 2), -math.inf)], 2)
    ids = torch.empty(1, 1, 4, dtype=torch.int32)
    select_pages(ids, scores, torch.tensor([7], dtype=torch.int32), 0, 1)
    assert ids.tolist() == [[[0, 4, 5, 6]]]


def test_the_local_page_is_the_rows_own():
    assert choose([[9.0, 8.0, 7.0, 6.0, 5.0]] * 3, [3, 4, 5], 2) == [[0, 2], [0, 3], [0, 4]]


def test_scores_behind_the_valid_pages_are_not_looked_at():
    assert choose([[1.0, 2.0, 3.0, math.inf, math.nan]], [3], 2) == [[1, 2]]


def test_a_row_without_pages_selects_none():
    assert choose([[1.0, 2.0]], [0], 4) == [[-1, -1, -1, -1]]


def test_fewer_pages_than_k_are_all_selected():
    assert choose([[1.0, math.nan, -math.inf]], [3], 5) == [[0, 1, 2, -1, -1]]


def test_the_width_of_the_score_buffer_does_not_matter():
    scores = torch.randn(64, generator=torch.Generator().manual_seed(0)).tolist()
    assert choose([scores[:20]], [20], 4) == choose([scores], [20], 4)
