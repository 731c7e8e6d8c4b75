"""One step and one prompt by themselves: what they leave in inputs, lengths and caches."""

from __future__ import annotations

import pytest
import torch

from eagle3.accept import PADDING_TOKEN, accept_greedy
from eagle3.errors import CreationRefused, ShapeMismatch
from eagle3.loop import DraftLoop
from eagle3.m3.attention import allocate_caches
from eagle3.pools import draft_geometry
from eagle3.prompt import PromptReader, page_rows
from eagle3.step import Caches, SpeculativeStep
from msa import PagedCache

torch.set_num_threads(1)
PAGES = list(range(15, -1, -1))


@pytest.fixture
def caches(counting) -> Caches:
    config = counting.target.config
    geometry = config.geometry(max_batch=3, num_pages=32, dtype=torch.float32)
    of_draft = draft_geometry(counting.head, config, geometry, 32)
    draft = PagedCache.allocate(of_draft, "cpu", sparse=False)
    found = Caches(geometry, allocate_caches(config, geometry, "cpu"), of_draft, draft)
    for cache in (*found.target, draft):
        for tensor in (cache.k, cache.v, cache.index_k):
            if tensor is not None:
                tensor.zero_()
    return found


def held(caches: Caches) -> list[torch.Tensor]:
    """Copies of everything in the caches but the dummy slot, which takes what belongs to no request."""
    return [
        tensor[:-1].clone()
        for cache in (*caches.target, caches.draft)
        for tensor in (cache.k, cache.v, cache.index_k)
        if tensor is not None
    ]


def test_chunks_leave_the_caches_and_drafts_of_a_whole_prompt(counting, caches, prompts):
    reader = PromptReader(*counting, caches, 3)
    prompt = prompts[2]
    whole = reader.read(prompt, 0, 33, PAGES, PAGES)
    first = held(caches)
    for tensor in first:
        assert tensor.count_nonzero() > 0
    for cache in (*caches.target, caches.draft):
        cache.k.zero_(), cache.v.zero_()
    assert [reader.read(prompt, start, stop, PAGES, PAGES) for start, stop in ((0, 7), (7, 8), (8, 24))] == [None] * 3
    assert reader.read(prompt, 24, 33, PAGES, PAGES) == whole
    assert all(torch.equal(one, other) for one, other in zip(first, held(caches), strict=True))


def test_preparing_a_step_leaves_what_it_advances_and_the_caches(counting, caches, monkeypatch):
    """Expected: one run of everything that launches, and of that the dummy slot only; none inside a capture."""
    step = SpeculativeStep(counting.target, counting.head, caches, 3, 2)
    step.inputs.copy_(torch.tensor([[5, 6, 7], [9, 30, 31], [0, 0, 0]]))
    step.page_table[:2, :8] = torch.tensor([PAGES[:8], PAGES[8:]])
    step.lengths.stage([15, 30])
    state, before = {name: tensor.clone() for name, tensor in step.advanced().items()}, held(caches)
    ran = []
    monkeypatch.setattr(step.loop, "chain", lambda hidden, chain=step.loop.chain: ran.append(1) or chain(hidden))
    step.prepare()
    assert ran == []
    monkeypatch.setattr(counting.target.operators, "kernels", "triton")
    step.prepare()
    assert ran == [1]
    assert [name for name, tensor in step.advanced().items() if not torch.equal(tensor, state[name])] == []
    assert all(torch.equal(one, other) for one, other in zip(before, held(caches), strict=True))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="kernels of a step"):
        step.prepare()
    with pytest.raises(RuntimeError, match="draft kernels"):
        step.loop.prepare(step.tokens, torch.zeros(9, 1))


def test_without_drafts_a_prompt_gives_one_token(counting, caches, prompts):
    said, drafts = PromptReader(counting.target, None, caches, 0).read(prompts[1], 0, 5, PAGES)
    assert drafts == [] and said == PromptReader(*counting, caches, 2).read(prompts[1], 0, 5, PAGES, PAGES)[0]


def test_a_step_carries_itself_on(counting, caches, prompts):
    """A row of three is real. It is staged once, and then the step is run again and again."""
    prompt, draft_len = prompts[0], 3
    said, drafts = PromptReader(*counting, caches, draft_len).read(prompt, 0, 21, PAGES, PAGES)
    step = SpeculativeStep(*counting, caches, 3, draft_len)
    step.inputs[0].copy_(torch.tensor([said, *drafts]))
    step.lengths.stage([21])
    for table, geometry in ((step.page_table, caches.geometry), (step.loop.page_table, caches.draft_geometry)):
        table.copy_(page_rows([PAGES], geometry, 3))
    text, addresses = [said], {name: tensor.data_ptr() for name, tensor in step.tensors().items()}
    for _ in range(5):
        step.run()
        count = int(step.lengths.count[0])
        text += step.tokens[0, :count].tolist()
        assert step.lengths.past.tolist() == [21 + len(text) - 1, 0, 0]
        assert step.inputs[0, 0] == text[-1]
        assert step.lengths.count[1:].tolist() == [0, 0]
        assert step.inputs[1:].eq(PADDING_TOKEN).all() and step.tokens[1:].eq(PADDING_TOKEN).all()
    assert len(text) > 6, "no draft was kept"
    assert {name: tensor.data_ptr() for name, tensor in step.tensors().items()} == addresses
    fresh = PromptReader(*counting, caches, draft_len)
    assert fresh.read(prompt + text[:-1], 0, 20 + len(text), PAGES, PAGES) == (text[-1], step.inputs[0, 1:].tolist())


def test_padding_rows_write_nothing(counting, caches):
    step = SpeculativeStep(*counting, caches, 3, 3)
    for table, geometry in ((step.page_table, caches.geometry), (step.loop.page_table, caches.draft_geometry)):
        table.copy_(page_rows([PAGES] * 3, geometry, 3))
    before = held(caches)
    step.run()
    assert all(torch.equal(one, other) for one, other in zip(before, held(caches), strict=True))


def test_another_rule_of_acceptance_is_obeyed(counting, caches, prompts):
    def two(draft, target, kv_lens, out_tokens, out_count) -> None:
        accept_greedy(draft, target, kv_lens, out_tokens, out_count)
        out_count.copy_(2 * kv_lens.sign())

    step = SpeculativeStep(*counting, caches, 2, 3, accept=two)
    step.inputs.fill_(5)
    step.lengths.stage([17])
    step.page_table.copy_(page_rows([PAGES], caches.geometry, 2))
    step.loop.page_table.copy_(page_rows([PAGES], caches.draft_geometry, 2))
    step.run()
    assert step.lengths.count.tolist() == [2, 0] and step.lengths.past.tolist() == [19, 0]
    assert step.inputs[0, 0] == step.tokens[0, 1]


def test_the_last_page_of_a_row_may_reach_beyond_the_longest_request(counting):
    geometry = counting.target.config.geometry(max_batch=2, num_pages=8, max_seq_len=19)
    assert page_rows([[3, 1, 2], [4]], geometry, 2).tolist() == [[3, 1, 2], [4, -1, -1]]


def test_what_a_step_and_a_loop_refuse(counting, caches, small_config):
    with pytest.raises(CreationRefused, match="draft_len 3 without a head"):
        SpeculativeStep(counting.target, None, caches, 1, 3)
    with pytest.raises(CreationRefused, match="draft_len 3 without a cache for the head"):
        SpeculativeStep(*counting, Caches(caches.geometry, caches.target), 1, 3)
    wide = draft_geometry(counting.head, small_config, caches.geometry, 8)
    object.__setattr__(wide, "kv_heads", 1)
    step = SpeculativeStep(*counting, caches, 1, 3)
    with pytest.raises(ShapeMismatch, match="draft geometry of 4 heads over 1 of 16"):
        DraftLoop(counting.head, wide, caches.draft, step.lengths)
