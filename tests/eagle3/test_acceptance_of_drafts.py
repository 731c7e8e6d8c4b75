"""What the target keeps of the drafts: every count by construction, and the distribution that rejection gives."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3.accept import PADDING_TOKEN, accept_greedy, accept_rejection, widen
from eagle3.errors import ShapeMismatch

torch.set_num_threads(1)


def outputs(batch: int, draft_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((batch, 1 + draft_len), -7), torch.full((batch,), -7, dtype=torch.int32)


def ones(batch: int) -> torch.Tensor:
    return torch.ones(batch, dtype=torch.int32)


def first_disagreement(draft: list[int], target: list[int]) -> int:
    """The count in plain Python."""
    for place, token in enumerate(draft):
        if token != target[place]:
            return place + 1
    return len(draft) + 1


@pytest.mark.parametrize("draft_len", range(6))
def test_every_count_is_reached_and_the_tokens_are_the_targets(draft_len):
    target = torch.arange(10, 11 + draft_len).repeat(draft_len + 1, 1)
    draft = target[:, :draft_len].clone()
    for row in range(draft_len):
        draft[row, row] = 3  # row r keeps r drafts, and the agreement behind them does not count
    tokens, count = outputs(draft_len + 1, draft_len)
    accept_greedy(draft, target, ones(draft_len + 1), tokens, count)
    assert count.tolist() == list(range(1, draft_len + 2))
    assert torch.equal(tokens, target)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_counts_are_those_of_a_loop(data):
    draft_len, batch = data.draw(st.integers(0, 5)), data.draw(st.integers(1, 4))
    token = st.integers(0, 2)
    target = [data.draw(st.lists(token, min_size=1 + draft_len, max_size=1 + draft_len)) for _ in range(batch)]
    draft = [data.draw(st.lists(token, min_size=draft_len, max_size=draft_len)) for _ in range(batch)]
    lens = [data.draw(st.sampled_from([0, 9])) for _ in range(batch)]
    tokens, count = outputs(batch, draft_len)
    drafts = torch.tensor(draft, dtype=torch.int64).view(batch, draft_len)
    accept_greedy(drafts, torch.tensor(target), torch.tensor(lens, dtype=torch.int32), tokens, count)
    for row in range(batch):
        expected = first_disagreement(draft[row], target[row]) if lens[row] else 0
        assert count[row] == expected
        assert tokens[row].tolist() == (target[row] if lens[row] else [PADDING_TOKEN] * (1 + draft_len))


def test_padding_rows_count_nothing_and_hold_a_legal_token():
    draft, target = torch.full((2, 3), 2**31 - 1), torch.full((2, 4), -5)
    tokens, count = outputs(2, 3)
    accept_greedy(draft, target, torch.tensor([0, 0], dtype=torch.int32), tokens, count)
    assert count.tolist() == [0, 0] and bool((tokens == PADDING_TOKEN).all())
    q, p = torch.full((2, 3, 8), float("nan")), torch.full((2, 4, 8), float("nan"))
    accept_rejection(draft, q, p, torch.full((2, 4), float("nan")), ones(2) * 0, tokens, count)
    assert count.tolist() == [0, 0] and bool((tokens == PADDING_TOKEN).all())


def test_a_placeholder_is_never_kept():
    tokens, count = outputs(1, 2)
    accept_greedy(torch.tensor([[-1, -1]]), torch.tensor([[4, 5, 6]]), ones(1), tokens, count)
    assert count.tolist() == [1] and tokens.tolist() == [[4, 5, 6]]
    p = torch.zeros(1, 3, 8)
    p[..., 0] = 1.0  # a clamped -1 would be kept
    accept_rejection(torch.tensor([[-1, -1]]), p[:, :2], p, torch.zeros(1, 3), ones(1), tokens, count)
    assert count.tolist() == [1]


@pytest.mark.parametrize("wrong", ["target", "kv_lens", "out_tokens", "out_count"])
def test_tensors_that_do_not_belong_together_are_named(wrong):
    shapes = {"target": (2, 4), "kv_lens": (2,), "out_tokens": (2, 4), "out_count": (2,)}
    shapes[wrong] = (5,) if len(shapes[wrong]) == 1 else (2, 3)
    with pytest.raises(ShapeMismatch, match=f"{wrong} is .* expected"):
        accept_greedy(torch.zeros(2, 3), *(torch.zeros(shape) for shape in shapes.values()))


def distributions(seed: int, rows: int, vocabulary: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(torch.randn(rows, vocabulary, generator=generator) * 2, -1)


def reject(draft, q, p, uniforms):
    batch, draft_len = draft.shape
    tokens, count = outputs(batch, draft_len)
    accept_rejection(draft, q, p, uniforms, ones(batch), tokens, count)
    return tokens, count


@pytest.mark.parametrize("one_hot", [False, True], ids=["sampled-drafts", "arg-max-drafts"])
def test_the_first_token_is_distributed_as_the_target(one_hot):
    """The grid of uniforms is exhaustive, so the shares are exact up to its step: no test of chance."""
    vocabulary, grid = 5, 256
    p = distributions(1, 2, vocabulary).view(1, 2, vocabulary)
    q = distributions(2, 1, vocabulary).view(1, 1, vocabulary)
    if one_hot:
        q = torch.nn.functional.one_hot(q.argmax(-1), vocabulary).float()
    points = (torch.arange(grid) + 0.5) / grid
    share = torch.zeros(vocabulary, dtype=torch.float64)
    uniforms = torch.cartesian_prod(points, points)
    rows = uniforms.shape[0]
    for token in range(vocabulary):
        if q[0, 0, token] == 0:
            continue
        draft = torch.full((rows, 1), token)
        tokens, _ = reject(draft, q.expand(rows, 1, vocabulary), p.expand(rows, 2, vocabulary), uniforms)
        first = torch.bincount(tokens[:, 0], minlength=vocabulary).double() / rows
        share += first * q[0, 0, token].double()
    assert (share - p[0, 0].double()).abs().max() < 4 / grid


def test_the_bonus_token_is_distributed_as_the_target_behind_the_last_draft():
    grid, vocabulary = 4096, 5
    p = distributions(3, 3, vocabulary).view(1, 3, vocabulary)
    draft = p[:, :2].argmax(-1)
    points = ((torch.arange(grid) + 0.5) / grid).view(-1, 1)
    uniforms = torch.cat((torch.zeros(grid, 2), points), 1)
    q = p[:, :2].expand(grid, 2, vocabulary)
    tokens, count = reject(draft.expand(grid, 2), q, p.expand(grid, 3, vocabulary), uniforms)
    assert bool((count == 3).all())
    share = torch.bincount(tokens[:, 2], minlength=vocabulary).double() / grid
    assert (share - p[0, 2].double()).abs().max() < 2 / grid


@pytest.mark.parametrize("draft_len", range(4))
def test_rejection_reaches_every_count(draft_len):
    vocabulary = 6
    for kept in range(draft_len + 1):
        draft = torch.zeros(1, draft_len, dtype=torch.int64)
        q = torch.zeros(1, draft_len, vocabulary)
        q[..., 0] = 1.0
        p = torch.zeros(1, 1 + draft_len, vocabulary)
        p[:, :kept, 0] = 1.0
        p[:, kept:, 4] = 1.0
        tokens, count = reject(draft, q, p, torch.full((1, draft_len + 1), 0.999))
        assert count.tolist() == [kept + 1]
        assert tokens.tolist() == [[0] * kept + [4] * (draft_len - kept + 1)]


def test_equal_distributions_keep_everything_and_the_largest_uniform_draws_a_possible_token():
    most = 1 - 2.0**-24
    q = distributions(5, 64, 7).view(1, 64, 7)
    draft = q.argmax(-1)
    p = torch.cat((q, torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0, 0.0]).view(1, 1, 7)), 1)
    tokens, count = reject(draft, q, p, torch.full((1, 65), most))
    assert count.tolist() == [65] and tokens[0, -1] == 4


def test_a_token_without_probability_is_never_drawn():
    p = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0]).view(1, 1, 5)
    points = torch.tensor([0.0, 2.0**-24, 0.25, 0.5, 0.5 + 2.0**-24, 1 - 2.0**-24]).view(-1, 1)
    tokens, _ = reject(torch.zeros(6, 0, dtype=torch.int64), torch.zeros(6, 0, 5), p.expand(6, 1, 5), points)
    assert tokens[:, 0].tolist() == [1, 1, 1, 3, 3, 3]


def test_nothing_left_of_p_less_q_draws_from_p():
    q = torch.tensor([0.5, 0.5, 0.0]).view(1, 1, 3)
    p = torch.tensor([0.25, 0.5, 0.0]).view(1, 1, 3).expand(1, 2, 3)  # sums to less than 1, as rounding may have it
    tokens, count = reject(torch.tensor([[0]]), q, p, torch.tensor([[0.9, 0.1]]))
    assert count.tolist() == [1] and tokens[0, 0] == 0


def test_a_drawn_token_does_not_depend_on_its_neighbours():
    vocabulary, draft_len = 37, 3
    q = distributions(7, 12, vocabulary).view(4, 3, vocabulary)
    p = distributions(8, 16, vocabulary).view(4, 4, vocabulary)
    draft = q.argmax(-1)
    uniforms = torch.rand(4, draft_len + 1, generator=torch.Generator().manual_seed(9))
    tokens, count = reject(draft, q, p, uniforms)
    for row in range(4):
        one = slice(row, row + 1)
        alone, kept = reject(draft[one], q[one], p[one], uniforms[one])
        assert torch.equal(alone, tokens[one]) and torch.equal(kept, count[one])


def test_drafts_of_a_smaller_vocabulary_are_widened():
    ids = torch.tensor([0, 3, 4])
    narrow = torch.tensor([[[0.2, 0.3, 0.5]]])
    out = torch.full((1, 1, 6), 9.0)
    for _ in range(2):
        widen(narrow, ids, out)
        assert torch.equal(out, torch.tensor([[[0.2, 0.0, 0.0, 0.3, 0.5, 0.0]]]))


def test_strict_acceptance_is_what_rejection_gives_at_temperature_zero():
    vocabulary, draft_len = 3, 2
    for row in itertools.product(range(vocabulary), repeat=2 * draft_len + 1):
        draft, target = torch.tensor([row[:draft_len]]), torch.tensor([row[draft_len:]])
        q = torch.nn.functional.one_hot(draft, vocabulary).float()
        p = torch.nn.functional.one_hot(target, vocabulary).float()
        tokens, count = reject(draft, q, p, torch.full((1, draft_len + 1), 0.5))
        strict, expected = outputs(1, draft_len)
        accept_greedy(draft, target, ones(1), strict, expected)
        assert torch.equal(count, expected)
        assert torch.equal(tokens[0, : int(count)], strict[0, : int(count)])
