"""The engine: the target's own greedy text, whatever is drafted, batched or cut into chunks."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import torch

from eagle3.acceptance import Acceptance
from eagle3.engine import Engine
from eagle3.m3.attention import EagerAttention, allocate_caches
from eagle3.m3.pair_files import Pair
from eagle3.text import Generated
from msa import EagerBatch, FlatTable

torch.set_num_threads(1)
NEW = 14
DRAFT_LENS = range(6)


def generate(
    pair: Pair, prompts: list[list[int]], new: int = NEW, stop: Collection[int] = (), **options: object
) -> Generated:
    return Engine(pair.target, pair.head, **{"max_seq_len": 64, "chunk": 16, **options}).generate(
        prompts, new, stop=stop
    )


def histogram(acceptance: Acceptance) -> list[int]:
    """Verify steps that kept 1, 2, ... tokens."""
    kept = [acceptance.steps, *acceptance.kept, 0]
    return [more - fewer for more, fewer in zip(kept, kept[1:], strict=False)]


@pytest.fixture(scope="module")
def alone(counting, prompts) -> dict[int, Generated]:
    """One request at a time, by draft length."""
    return {draft_len: generate(counting, prompts, draft_len=draft_len) for draft_len in DRAFT_LENS}


def test_text_without_drafts_is_what_one_forward_over_all_of_it_says(counting, prompts, alone):
    target, prompt = counting.target, prompts[0]
    tokens = prompt + alone[0].tokens[0]
    sizes = target.config.geometry(max_batch=1, num_pages=16, dtype=torch.float32)
    table = FlatTable.stage([list(range(15, -1, -1))], [len(tokens)], sizes, "cpu")
    batch = EagerBatch(sizes, [len(tokens)], [len(tokens)], table, "cpu")
    attention = EagerAttention(batch, allocate_caches(target.config, sizes, "cpu"))
    hidden, _ = target.forward(torch.tensor(tokens), torch.arange(len(tokens)), attention)
    said = target.logits(hidden).argmax(1).tolist()
    assert said[len(prompt) - 1 : -1] == alone[0].tokens[0]
    moved = sum((after - before) % 64 != 1 for before, after in zip(tokens[21:], tokens[22:], strict=False))
    assert moved >= 2, "the context changes nothing, so it may be wrong unseen"


@pytest.mark.parametrize("draft_len", DRAFT_LENS)
def test_drafts_change_nothing_but_the_number_of_steps(alone, draft_len):
    assert alone[draft_len].tokens == alone[0].tokens
    assert all(len(tokens) == NEW for tokens in alone[draft_len].tokens)
    if draft_len:
        assert alone[draft_len].steps < 0.8 * alone[0].steps


def test_every_number_of_kept_tokens_occurs(alone):
    for draft_len in DRAFT_LENS:
        counts = histogram(alone[draft_len].acceptance)
        assert len(counts) == 1 + draft_len and all(counts), counts


@pytest.mark.parametrize(("batch", "draft_len"), [(2 + draft_len % 2, draft_len) for draft_len in DRAFT_LENS])
def test_neighbours_change_neither_text_nor_drafts(counting, prompts, alone, batch, draft_len):
    """More prompts than rows, and requests that end at different steps: rows change hands all the time."""
    together = generate(counting, prompts, draft_len=draft_len, max_batch=batch)
    assert together.tokens == alone[draft_len].tokens
    assert histogram(together.acceptance) == histogram(alone[draft_len].acceptance)
    assert together.steps < alone[draft_len].steps
    assert together.replayed == 0


@pytest.mark.parametrize("chunk", [3, 256])
def test_chunks_of_a_prompt_change_neither_text_nor_drafts(counting, prompts, alone, chunk):
    given = generate(counting, prompts[1:3], draft_len=3, chunk=chunk, max_batch=2)
    assert given.tokens == alone[3].tokens[1:3]
    whole = generate(counting, prompts[1:3], draft_len=3, max_batch=2)
    assert histogram(given.acceptance) == histogram(whole.acceptance)


def test_drafts_are_those_that_a_prompt_reader_finds_behind_the_same_text(counting, prompts):
    """So draft caches, pairing and positions are right in every row, also after the batch has changed."""
    engine = Engine(counting.target, counting.head, draft_len=3, max_batch=3, max_seq_len=64, chunk=16)
    fresh = Engine(counting.target, counting.head, draft_len=3, max_seq_len=64)
    checked = set()

    def compare(engine: Engine) -> None:
        if engine.batch.step is None:
            return
        for request, row in zip(engine.batch.requests, engine.batch.step.inputs.tolist(), strict=False):
            text = engine.texts[request]
            if len(text.tokens) < text.most:
                assert row[0] == text.tokens[-1]
                if (len(text.tokens) + request) % 2 == 0:  # every step would take long
                    assert fresh.generate([text.prompt + text.tokens[:-1]], 1).tokens == [[row[0]]]
                    assert fresh.texts[0].drafts == row[1:]
                    checked.add((request, tuple(engine.batch.requests)))

    engine.generate(prompts, 10, progress=compare)
    assert {request for request, _ in checked} == {0, 1, 2, 3} and len(checked) >= 5


@pytest.mark.parametrize("draft_len", [0, 3])
def test_the_reference_backend_says_and_keeps_the_same(counting, prompts, alone, draft_len):
    given = generate(counting, prompts, draft_len=draft_len, backend="reference", max_batch=2)
    assert given.tokens == alone[draft_len].tokens
    assert histogram(given.acceptance) == histogram(alone[draft_len].acceptance)


@pytest.mark.parametrize("draft_len", [0, 3])
def test_a_stop_token_is_the_last_one(counting, prompts, alone, draft_len):
    whole = alone[0].tokens
    stop = {whole[0][7], whole[1][0]}
    cut = [tokens[: next((place + 1 for place, token in enumerate(tokens) if token in stop), NEW)] for tokens in whole]
    assert len(cut[1]) == 1 and 1 < len(cut[0]) < NEW and len({len(tokens) for tokens in cut}) >= 3
    assert generate(counting, prompts, draft_len=draft_len, max_batch=2, stop=stop).tokens == cut


@pytest.mark.parametrize("new", [1, 2, 3])
def test_few_tokens(counting, prompts, alone, new):
    given = generate(counting, prompts, new, draft_len=3, max_batch=2)
    assert given.tokens == [tokens[:new] for tokens in alone[0].tokens]
    assert (given.steps == 0) == (new == 1)


def test_a_request_may_fill_the_engine(counting, prompts, alone):
    """The last drafts are written behind ``max_seq_len``, and there is a page for them."""
    full = len(prompts[2]) + NEW
    given = generate(counting, prompts[2:], draft_len=5, max_seq_len=full, max_batch=2)
    assert given.tokens == alone[0].tokens[2:]


def test_a_second_call_begins_anew_and_every_page_comes_back(counting, prompts, alone):
    engine = Engine(counting.target, counting.head, draft_len=3, max_seq_len=64, max_batch=2, chunk=16)
    pools = [manager.pool for manager in engine.managers.managers]
    free = [pool.free for pool in pools]
    assert len(pools) == 2
    for order in ([1], [3]):
        given = engine.generate([prompts[place] for place in order], NEW)
        assert given.tokens == [alone[3].tokens[place] for place in order]
        assert [pool.free for pool in pools] == free
    with pytest.raises(KeyboardInterrupt):
        engine.generate(prompts[1:], NEW, progress=interrupt_at(2))
    assert [pool.free for pool in pools] == free
    assert engine.generate(prompts[1:2], NEW).tokens == alone[3].tokens[1:2]


def interrupt_at(steps: int):
    def progress(engine: Engine) -> None:
        if engine.ran == steps:
            raise KeyboardInterrupt

    return progress


def test_no_prompt_gives_no_text(counting):
    assert generate(counting, []).tokens == []
