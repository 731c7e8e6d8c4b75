"""Steps replayed from graphs: the text and the drafts of eager steps; a graph that cannot be made is told by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from eagle3.accept import accept_greedy
from eagle3.engine import Engine
from eagle3.errors import BucketsNotCaptured
from eagle3.m3.pair_files import Pair
from eagle3.m3.successor import successor_pair
from eagle3.text import Generated
from graphcheck.backend.emulator import EmulatorBackend

torch.set_num_threads(1)
NEW, DRAFT_LEN = 6, 2


@pytest.fixture(scope="module")
def short(prompts) -> list[list[int]]:
    """Four prompts of one page or less: the emulator takes its time."""
    return [prompts[1], prompts[3], prompts[1][::-1], prompts[3][::-1]]


@pytest.fixture(scope="module")
def eager(counting, short) -> Generated:
    return Engine(counting.target, counting.head, draft_len=DRAFT_LEN, max_batch=3, max_seq_len=64).generate(short, NEW)


@pytest.fixture(scope="module")
def on_device(small_config) -> Iterator[Pair]:
    with EmulatorBackend().active(), torch.no_grad():
        yield successor_pair(small_config, "cuda", unrest=0.65, draft_unrest=0.15, seed=3)


def test_graphs_of_several_batch_sizes_keep_what_eager_steps_keep(on_device, short, eager):
    """Four prompts in graphs of 1 and 3 rows: rows change hands. Then two, which run in three rows."""
    engine = Engine(*on_device, draft_len=DRAFT_LEN, graphs=True, max_batch=3, batches=[1, 3], max_seq_len=64, chunk=64)
    given = engine.generate(short, NEW)
    assert given.tokens == eager.tokens
    assert (given.acceptance.steps, given.acceptance.kept) == (eager.acceptance.steps, eager.acceptance.kept)
    assert given.replayed == given.steps == eager.steps
    batches = []
    two = engine.generate(short[1::2], 4, progress=lambda engine: batches.append(list(engine.batch.requests)))
    assert two.tokens == [tokens[:4] for tokens in eager.tokens[1::2]]
    assert [0, 1] in batches, "no batch was smaller than its graph"


def test_graphs_without_drafts_say_the_same(on_device, short, eager):
    given = Engine(on_device.target, graphs=True, max_seq_len=64, chunk=64).generate(short[1:2], 6)
    assert given.tokens == [eager.tokens[1][:6]]
    assert given.replayed == given.steps == 5


def reads_on_the_host(draft, target, kv_lens, out_tokens, out_count) -> None:
    accept_greedy(draft, target, kv_lens, out_tokens, out_count)
    if draft.shape[0] == 2:
        out_count.sum().item()


def test_a_graph_that_cannot_be_captured_is_named(on_device, short, eager):
    options = {"draft_len": 1, "graphs": True, "max_batch": 2, "batches": [1, 2], "max_seq_len": 64, "chunk": 64}
    engine = Engine(*on_device, **options, accept=reads_on_the_host, allow_eager=True)
    with pytest.raises(BucketsNotCaptured, match=r"1 of 2 buckets have no graph \(batch 2, draft_len 1: GC102: item"):
        engine.buckets.check()
    given = engine.generate([short[0], short[1], short[0]], 4)
    assert given.tokens == [eager.tokens[place][:4] for place in (0, 1, 0)]
    assert 0 < given.replayed < given.steps, "the batch of two runs eagerly, what is left of it from its graph"


def breaks_down(draft, target, kv_lens, out_tokens, out_count) -> None:
    out_count.fill_(7)
    raise RuntimeError("out of memory")


def test_a_failed_warm_up_leaves_lengths_as_they_were(on_device, monkeypatch):
    from eagle3.step import SpeculativeStep

    made = []
    create = SpeculativeStep.__init__

    def watched(self, *arguments, **options) -> None:
        create(self, *arguments, **options)
        made.append(self)

    monkeypatch.setattr(SpeculativeStep, "__init__", watched)
    with pytest.raises(BucketsNotCaptured, match=r"\(batch 1, draft_len 0: out of memory\)"):
        Engine(on_device.target, graphs=True, max_seq_len=64, accept=breaks_down)
    assert [int(tensor.abs().sum()) for tensor in made[0].lengths.advanced().values()] == [0] * 6
