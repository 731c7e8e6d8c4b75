"""The target's forward through msa: a token's bits depend on its own request only."""

from __future__ import annotations

import random

import pytest
import torch

from eagle3.errors import Eagle3Error
from eagle3.m3.attention import DriverAttention, EagerAttention, allocate_caches
from eagle3.m3.config import TargetConfig, default_capture_layers
from eagle3.m3.errors import TargetConfigRefused, WeightsMismatch
from eagle3.m3.target import Target
from eagle3.m3.training.model import TargetModel
from eagle3.m3.weights import load_target, random_weights, save_target, shapes
from eagle3.ops import Operators
from msa import DecodeDriver, EagerBatch, FlatTable, PagedCache

torch.set_num_threads(1)
CONFIG = TargetConfig.tiny()
LONGEST = 64


class Engine:
    """Requests with their pages; prefill through the eager API, decode and verify steps through a driver."""

    def __init__(self, target: Target, bucket: int, seed: int = 0) -> None:
        self.target, self.bucket = target, bucket
        width = LONGEST // CONFIG.page_size
        self.sizes = CONFIG.geometry(
            max_batch=bucket, num_pages=bucket * width, max_seq_len=LONGEST, dtype=torch.float32
        )
        self.caches = allocate_caches(CONFIG, self.sizes, "cpu")
        for cache in self.caches:
            for tensor in (cache.k, cache.v, cache.index_k):
                if tensor is not None:
                    tensor.fill_(float("nan"))
        pages = list(range(self.sizes.num_pages))
        random.Random(seed).shuffle(pages)
        self.rows = [pages[b * width : (b + 1) * width] for b in range(bucket)]

    def prefill(self, prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and captured inputs of all prompt tokens, request-major."""
        lengths = [len(prompt) for prompt in prompts]
        table = FlatTable.stage(self.rows[: len(prompts)], lengths, self.sizes, "cpu")
        batch = EagerBatch(self.sizes, lengths, lengths, table, "cpu")
        tokens = torch.tensor([token for prompt in prompts for token in prompt])
        positions = torch.cat([torch.arange(length) for length in lengths])
        hidden, captured = self.target.forward(tokens, positions, EagerAttention(batch, self.caches))
        return self.target.logits(hidden), captured

    def step(self, pasts: list[int], new: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [b, Q, V] and captured inputs [b, Q, 3H] of one step whose requests have ``pasts`` tokens."""
        qo_len = len(new[0])
        driver = DecodeDriver(self.sizes, self.bucket, qo_len, "cpu")
        driver.stage([past + qo_len for past in pasts], self.rows[: len(pasts)])
        driver.plan()
        tokens = torch.zeros(self.bucket * qo_len, dtype=torch.int32)
        tokens[: len(pasts) * qo_len] = torch.tensor(new, dtype=torch.int32).flatten()
        hidden, captured = self.target.forward(tokens, driver.ladder.qo_offsets, DriverAttention(driver, self.caches))
        logits = self.target.logits(hidden)
        real = len(pasts) * qo_len
        return logits[:real].view(len(pasts), qo_len, -1), captured[:real].view(len(pasts), qo_len, -1)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.int32)


def text(seed: int, count: int) -> list[int]:
    return torch.randint(0, CONFIG.vocab_size, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(CONFIG, random_weights(CONFIG, 0, "cpu"), Operators("portable"))


@pytest.fixture(scope="module")
def single_steps(target: Target) -> tuple[torch.Tensor, torch.Tensor]:
    """What tokens 30 to 49 of request 0 give one by one, alone."""
    tokens = text(0, 50)
    engine = Engine(target, 1)
    engine.prefill([tokens[:30]])
    steps = [engine.step([30 + i], [[token]]) for i, token in enumerate(tokens[30:])]
    logits, captured = (torch.cat([step[part][0] for step in steps]) for part in (0, 1))
    assert logits.shape == (20, CONFIG.vocab_size) and captured.shape == (20, CONFIG.captured_size)
    assert not bool(logits.isnan().any())
    return logits, captured


@pytest.mark.parametrize(
    ("bucket", "neighbours"),
    [(1, []), (2, []), (3, [33, 6]), (4, [9, 57, 18])],
    ids=["alone", "padded", "two neighbours", "three neighbours"],
)
def test_a_verify_step_gives_each_token_the_bits_of_a_single_step(target, single_steps, bucket, neighbours):
    """Pages of 8 and top-k 2: from 30 tokens on most pages are not selected, and the steps cross two page ends."""
    tokens = text(0, 50)
    engine = Engine(target, bucket, seed=bucket)
    others = [text(request + 1, past + 4) for request, past in enumerate(neighbours)]
    engine.prefill([tokens[:30], *(other[:-4] for other in others)])
    for first in range(0, 20, 4):
        mine = tokens[30 + first : 34 + first]
        logits, captured = engine.step([30 + first, *neighbours], [mine, *(other[-4:] for other in others)])
        assert torch.equal(bits(logits[0]), bits(single_steps[0][first : first + 4]))
        assert torch.equal(bits(captured[0]), bits(single_steps[1][first : first + 4]))


def test_a_rejected_draft_leaves_no_trace(target, single_steps):
    tokens = text(0, 50)
    engine = Engine(target, 2)
    engine.prefill([tokens[:30], text(9, 11)])
    engine.step([30, 11], [[tokens[30], 7, 8, 9], text(8, 4)])
    logits, _ = engine.step([31, 11], [tokens[31:35], text(8, 4)])
    assert torch.equal(bits(logits[0]), bits(single_steps[0][1:5]))


def test_a_prefill_gives_the_bits_of_single_steps(target, single_steps):
    logits, captured = Engine(target, 3).prefill([text(5, 13), text(0, 50), text(6, 2)])
    assert torch.equal(bits(logits[43:63]), bits(single_steps[0]))
    assert torch.equal(bits(captured[43:63]), bits(single_steps[1]))


def test_what_the_head_sees_are_the_inputs_of_the_named_layers(target):
    """Expected: with the layers behind the first two doing nothing, all three are the same."""
    weights = random_weights(CONFIG, 0, "cpu")
    for name, tensor in weights.items():
        if (
            name.startswith("layers.")
            and int(name.split(".")[1]) >= 2
            and name.endswith(("o_proj.weight", "down_proj.weight"))
        ):
            tensor.zero_()
    hidden, captured = Target(CONFIG, weights, Operators("portable")).forward(*_prefill_arguments())
    low, middle, high = captured.chunk(3, 1)
    assert torch.equal(low, middle) and torch.equal(middle, high) and torch.equal(high, hidden)
    low, middle, high = target.forward(*_prefill_arguments())[1].chunk(3, 1)
    assert not torch.equal(low, middle) and not torch.equal(middle, high)


def _prefill_arguments() -> tuple[torch.Tensor, torch.Tensor, EagerAttention]:
    sizes = CONFIG.geometry(max_batch=1, num_pages=8, max_seq_len=LONGEST, dtype=torch.float32)
    batch = EagerBatch(sizes, [20], [20], FlatTable.stage([list(range(8))], [20], sizes, "cpu"), "cpu")
    caches = allocate_caches(CONFIG, sizes, "cpu")
    return torch.tensor(text(0, 20)), torch.arange(20), EagerAttention(batch, caches)


def test_the_trainable_model_agrees_with_the_forward_through_msa():
    model = TargetModel(CONFIG, seed=3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name))))
    model.selecting = True
    tokens = text(1, 61)
    with torch.no_grad():
        wanted, wanted_captured = model(torch.tensor([tokens]))
        model.selecting = False
        dense, _ = model(torch.tensor([tokens]))
    serving = Target(CONFIG, model.state_dict(), Operators("portable"))
    logits, captured = Engine(serving, 2).prefill([tokens, text(2, 5)])
    torch.testing.assert_close(logits[:61], wanted[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(captured[:61], wanted_captured[0], rtol=1e-4, atol=1e-4)
    assert bool((dense - wanted).abs().amax() > 0.01), "selection changes nothing, so its agreement shows nothing"


def test_random_weights_follow_the_seed_and_have_every_tensor():
    first, again, other = (random_weights(CONFIG, seed, "cpu", torch.bfloat16) for seed in (0, 0, 1))
    assert list(first) == list(shapes(CONFIG)) and all(tensor.dtype is torch.bfloat16 for tensor in first.values())
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])
    assert shapes(CONFIG).keys() == TargetModel(CONFIG, 0).state_dict().keys()


def test_a_saved_target_comes_back(tmp_path):
    weights = random_weights(CONFIG, 0, "cpu", torch.bfloat16)
    save_target(tmp_path, CONFIG, weights)
    config, loaded = load_target(tmp_path, "cpu")
    assert config == CONFIG and all(torch.equal(loaded[name], weights[name]) for name in weights)
    assert load_target(tmp_path, "cpu", torch.float32)[1]["norm.weight"].dtype is torch.float32


def test_weights_that_do_not_fit_are_all_named():
    weights = random_weights(CONFIG, 0, "cpu")
    del weights["norm.weight"]
    weights["extra"] = torch.zeros(1)
    weights["lm_head.weight"] = torch.zeros(3, 3)
    with pytest.raises(WeightsMismatch, match=r"norm.weight is missing; extra is unknown; lm_head.weight is \[3, 3\]"):
        Target(CONFIG, weights, Operators("portable"))
    weights = random_weights(CONFIG, 0, "cpu")
    weights["norm.weight"] = weights["norm.weight"].double()
    with pytest.raises(WeightsMismatch, match=r"torch\.float32, torch\.float64"):
        Target(CONFIG, weights, Operators("portable"))


def test_the_sizes_of_the_three_variants():
    default, tiny, wide = TargetConfig(), TargetConfig.tiny(), TargetConfig.m3_width()
    assert [default.is_sparse(layer) for layer in range(8)] == [False] * 3 + [True] * 5
    assert default.capture_layers == tiny.capture_layers == wide.capture_layers == (2, 4, 5)
    count = sum(torch.Size(shape).numel() for shape in shapes(default).values())
    assert 4.5e6 < count < 4.9e6
    geometry = wide.geometry(max_batch=8, num_pages=512)
    assert (geometry.q_heads, geometry.kv_heads, geometry.head_dim, geometry.page_size, geometry.top_k) == (
        16,
        1,
        128,
        128,
        16,
    )
    assert shapes(wide)["layers.0.self_attn.o_proj.weight"] == (6144, 2048)


def test_the_default_capture_layers_are_those_of_published_heads():
    assert default_capture_layers(60) == (2, 30, 57)
    with pytest.raises(TargetConfigRefused, match="6 layers have no default"):
        default_capture_layers(6)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"q_heads": 3}, "kv_heads does not divide"),
        ({"head_dim": 12, "rotary_dim": 14}, "head_dim 12 .*rotary_dim 14"),
        ({"capture_layers": (5, 2, 4)}, "three in ascending order"),
        ({"capture_layers": (2, 4, 8)}, r"of layers 0\.\.7"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes, words):
    with pytest.raises(TargetConfigRefused, match=words) as refused:
        TargetConfig(**sizes)
    assert isinstance(refused.value, (Eagle3Error, ValueError))


def test_a_config_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "config.json"
    CONFIG.save(path)
    good = path.read_text()
    path.write_text(good.replace("eagle3_m3", "llama"))
    with pytest.raises(TargetConfigRefused, match="model_type 'llama'"):
        TargetConfig.load(path)
    path.write_text(good.replace('"inputs"', '"outputs"'))
    with pytest.raises(TargetConfigRefused, match="capture_convention 'outputs'"):
        TargetConfig.load(path)
    path.write_text(good.replace("top_k", "topk"))
    with pytest.raises(TargetConfigRefused, match="unknown fields topk"):
        TargetConfig.load(path)


def test_a_longer_sequence_than_positions_is_refused():
    with pytest.raises(TargetConfigRefused, match="max_seq_len 257, but positions end at 256"):
        CONFIG.geometry(max_batch=1, num_pages=8, max_seq_len=257)


def test_every_layer_has_its_kind_of_cache():
    sizes = CONFIG.geometry(max_batch=1, num_pages=2)
    caches = allocate_caches(CONFIG, sizes, "cpu")
    assert [cache.index_k is not None for cache in caches] == [CONFIG.is_sparse(layer) for layer in range(8)]
    assert all(isinstance(cache, PagedCache) for cache in caches)
