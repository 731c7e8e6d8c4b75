"""The speculative loop on a GPU: its components, its graphs, and rows that keep their bits in any company."""

from __future__ import annotations

import pytest
import torch

from eagle3.engine import Engine
from eagle3.m3.config import TargetConfig
from eagle3.m3.successor import successor_pair
from eagle3.ops import Operators
from graphcheck import fuzz
from graphcheck.finding import Severity, Verdict
from graphcheck.registry import registered, resolve

CONFIG = TargetConfig(
    hidden_size=64, q_heads=4, kv_heads=2, head_dim=32, rotary_dim=16, intermediate_size=96, top_k=2, max_seq_len=512
)


@pytest.mark.parametrize("name", [name for name in registered() if name.startswith("eagle3.")])
def test_components_hold(name: str) -> None:
    target = fuzz(resolve(name), backend="cuda", examples=10, seed=2).targets[0]
    assert [finding for finding in target.findings if finding.severity is not Severity.NOTE] == []
    assert target.verdict is Verdict.PASS


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("outputs", "depth"), [(256, 256), (96, 768), (1000, 6144), (6144, 1024)])
def test_rows_of_a_linear_layer_keep_their_bits_in_any_company(outputs: int, depth: int, dtype: torch.dtype) -> None:
    linear = Operators("triton").linear
    generator = torch.Generator(device="cuda").manual_seed(3)
    weight = torch.randn(outputs, depth, device="cuda", generator=generator).to(dtype)
    rows = torch.randn(64, depth, device="cuda", generator=generator).to(dtype)
    alone = torch.cat([linear(rows[row : row + 1], weight) for row in range(64)])
    for count in (1, 2, 4, 15, 16, 17, 31, 32, 33, 64):
        assert torch.equal(linear(rows[:count], weight), alone[:count])
        assert torch.equal(linear(rows[64 - count :], weight), alone[64 - count :])


@pytest.mark.parametrize("draft_len", [0, 1, 3])
def test_graphs_say_what_eager_steps_and_plain_decoding_say(draft_len: int) -> None:
    """Expected: the same text with graphs and without, for any number of drafts; the same drafts kept."""
    pair = successor_pair(CONFIG, "cuda", kernels="triton", dtype=torch.bfloat16)
    prompts = [[1, 2, 3, 4, 5], [7] * 33, [200, 100, 50], list(range(90))]
    options = {"max_batch": 3, "max_seq_len": 256, "kernels": "triton"}
    plain = Engine(pair.target, **options).generate(prompts, 60)
    eager = Engine(pair.target, pair.head, draft_len=draft_len, **options).generate(prompts, 60)
    replayed = Engine(pair.target, pair.head, draft_len=draft_len, graphs=True, **options).generate(prompts, 60)
    assert replayed.replayed == replayed.steps > 0
    assert eager.tokens == plain.tokens and replayed.tokens == plain.tokens
    assert replayed.acceptance.kept == eager.acceptance.kept and replayed.acceptance.steps == eager.acceptance.steps
