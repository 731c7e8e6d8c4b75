"""What an engine refuses: at creation, and prompts before anything of them is read."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from eagle3.engine import Engine
from eagle3.errors import CheckpointMismatch, CreationRefused
from eagle3.head import DraftHead
from eagle3.m3.successor import successor_pair
from eagle3.ops import Operators

torch.set_num_threads(1)


def test_the_reference_backend_with_graphs_and_speculation_names_both_ways_out(counting):
    with pytest.raises(CreationRefused) as refused:
        Engine(counting.target, counting.head, draft_len=3, graphs=True, backend="reference", max_seq_len=64)
    assert str(refused.value) == (
        'backend="reference" with CUDA graphs and speculation: it plans each step on the host, so a graph would replay '
        'the lengths of its capture; use backend="msa", or turn graphs off with graphs=False'
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"graphs": True}, "CUDA graphs of a target on cpu; .*graphs=False"),
        ({"draft_len": 8}, r"draft_len 8, expected 0\.\.7"),
        ({"max_batch": 0}, "max_batch 0"),
        ({"chunk": 0}, "chunk 0"),
        ({"max_batch": 3, "batches": [1, 2]}, r"batches \[1, 2\]; .*largest of the last to be max_batch"),
        ({"max_batch": 3, "batches": [1, 4]}, r"batches \[1, 4\]"),
        ({"backend": "other"}, "backend 'other', expected one of msa, reference"),
        ({"kernels": "other"}, "kernels 'other', expected portable or triton"),
    ],
)
def test_options_that_cannot_be_served(counting, options, words):
    with pytest.raises(CreationRefused, match=words):
        Engine(counting.target, counting.head, **{"draft_len": 3, "max_seq_len": 64, **options})


def test_drafts_without_a_head(counting):
    with pytest.raises(CreationRefused, match="draft_len 3 without a draft"):
        Engine(counting.target, None, draft_len=3, max_seq_len=64)


def test_a_head_with_too_few_positions(counting):
    head = counting.head
    short = DraftHead(head.config, head.weights, head.embed, head.lm_head, Operators(), positions=70)
    Engine(counting.target, short, draft_len=3, max_seq_len=64)
    with pytest.raises(CreationRefused, match=r"requests of 71 tokens .*positions end at 70; .*positions=71"):
        Engine(counting.target, short, draft_len=3, max_seq_len=65)


def test_a_head_of_another_target(counting, small_config):
    other = successor_pair(replace(small_config, vocab_size=70, hidden_size=48, capture_layers=(0, 1, 2)))
    with pytest.raises(
        CheckpointMismatch, match="target_hidden_size 48, the target's 32; vocab_size 70, the target's 64"
    ):
        Engine(counting.target, other.head, draft_len=3, max_seq_len=64)


@pytest.mark.parametrize(
    ("prompts", "new", "words"),
    [
        ([[1], []], 4, "prompt 1 has 0 tokens and 4"),
        ([[1] * 61], 4, "prompt 0 has 61 tokens and 4 .*64 together"),
        ([[1]], 0, "1 tokens and 0"),
    ],
)
def test_prompts_that_cannot_be_served(counting, prompts, new, words):
    with pytest.raises(CreationRefused, match=words):
        Engine(counting.target, max_seq_len=64).generate(prompts, new)
