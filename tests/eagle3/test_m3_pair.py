"""An exported pair, served: the loaders read it, and head and target compute what they computed in training."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch

from eagle3.checkpoint import TargetTables, load_head
from eagle3.config import parse_config, read_config
from eagle3.head import DraftHead
from eagle3.m3.attention import EagerAttention, allocate_caches
from eagle3.m3.config import TargetConfig
from eagle3.m3.target import Target
from eagle3.m3.training.export import export_head, export_target, import_head, import_target
from eagle3.m3.training.head_trainer import HeadRecipe, new_head
from eagle3.m3.training.model import TargetModel
from eagle3.m3.weights import load_target
from eagle3.ops import Operators
from msa import EagerBatch, FlatTable, PagedCache

torch.set_num_threads(1)
CONFIG, RECIPE = TargetConfig.tiny(), HeadRecipe.tiny()
LENGTH, DRAFTS = 33, 3
SIZES = CONFIG.geometry(max_batch=1, num_pages=8, max_seq_len=64, dtype=torch.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("pair")
    export_target(place, TargetModel(CONFIG, seed=4))
    model = import_target(place, torch.device("cpu"))
    export_head(place, new_head(CONFIG, model.state_dict(), torch.arange(4, 260, 2), RECIPE), CONFIG, RECIPE)
    return place


def batch(new: int, length: int) -> EagerBatch:
    return EagerBatch(SIZES, [new], [length], FlatTable.stage([[5, 2, 7, 0, 1]], [length], SIZES, "cpu"), "cpu")


def attend(new: int, length: int, cache: PagedCache) -> Callable[..., torch.Tensor]:
    planned = batch(new, length)
    return lambda q, k, v: planned.dense_layer(q, k, v, cache)


def test_both_config_styles_say_the_same_of_the_head(folder):
    first = read_config(folder / "head")
    second = parse_config(json.loads((folder / "head" / "config.speculators.json").read_text()))
    assert first == second
    assert first.captured(CONFIG.layers) == CONFIG.capture_layers == (2, 4, 5)
    assert (first.draft_vocab_size, first.vocab_size, first.rms_norm_eps) == (128, 260, CONFIG.rms_norm_eps)


def test_the_served_pair_computes_what_the_trained_one_did(folder):
    tokens = torch.randint(0, 256, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    model = import_target(folder, torch.device("cpu"))
    trained = import_head(folder, model, RECIPE)
    with torch.no_grad():
        wanted_logits, wanted_captured = model(tokens)
        wanted = trained.unroll(wanted_captured, tokens, DRAFTS, own_tokens=True)
    rows = LENGTH - 1 - DRAFTS
    config, weights = load_target(folder / "target", "cpu", torch.float32)
    target = Target(config, weights, Operators("portable"))
    loaded = load_head(folder / "head", target=TargetTables(target.embed, target.lm_head), dtype=torch.float32)
    head = DraftHead(loaded.config, loaded.weights, loaded.embed, loaded.lm_head, Operators("portable"))
    attention = EagerAttention(batch(LENGTH, LENGTH), allocate_caches(CONFIG, SIZES, "cpu"))
    hidden, captured = target.forward(tokens[0], torch.arange(LENGTH), attention)
    torch.testing.assert_close(target.logits(hidden), wanted_logits[0], rtol=1e-4, atol=1e-4)

    cache = PagedCache.allocate(SIZES, "cpu", sparse=False)
    positions = torch.arange(rows)
    out = head.layer(tokens[0, 1 : 1 + rows], head.fuse(captured[:rows]), positions, attend(rows, rows, cache))
    torch.testing.assert_close(head.logits(out), wanted[0][0], rtol=1e-4, atol=1e-4)
    last = out[-1:]
    for step in range(1, DRAFTS):
        draft = head.to_target(head.logits(last).argmax(-1))
        place = rows - 1 + step
        last = head.layer(draft, last, torch.tensor([place]), attend(1, place + 1, cache))
        torch.testing.assert_close(head.logits(last), wanted[step][0, -1:], rtol=1e-4, atol=1e-4)


def test_padding_rows_may_hold_any_token_and_position():
    from eagle3.m3.weights import random_weights

    target = Target(CONFIG, random_weights(CONFIG, 0, "cpu"), Operators("portable"))
    planned = EagerBatch(SIZES, [4], [2], FlatTable.stage([[5]], [2], SIZES, "cpu"), "cpu")
    seen = []
    for trash in ([-1, 10**6], [7, 8]):
        attention = EagerAttention(planned, allocate_caches(CONFIG, SIZES, "cpu"))
        tokens, positions = torch.tensor([*trash, 3, 4]), torch.tensor([-2, 10**6, 0, 1])
        seen.append(target.logits(target.forward(tokens, positions, attention)[0])[2:])
    assert torch.equal(seen[0], seen[1])
