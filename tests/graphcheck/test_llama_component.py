"""A Hugging Face Llama decode step with a static cache, as a component: its hidden counter drifts in warm-up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from graphcheck import Buffers, Case, Component, case, integers
from graphcheck.finding import Severity, Verdict
from graphcheck.fuzzer import fuzz

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

VOCABULARY = 96


class LlamaDecode(Component):
    """One decode step; keys and values are declared, the cache's own counter is not."""

    mutates = ("keys", "values")
    counter: tuple[str, ...] = ()

    def allocate(self, device: torch.device) -> Buffers:
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=VOCABULARY,
            max_position_embeddings=64,
            attn_implementation="sdpa",
        )
        self.model = transformers.LlamaForCausalLM(config).eval().requires_grad_(False).to(device)
        self.cache = transformers.StaticCache(config=config, max_cache_len=32)
        with torch.no_grad():
            self.model(torch.tensor([[5, 6, 7, 8]]).to(device), past_key_values=self.cache)
        layer = self.cache.layers[0]
        held = {name: tensor for name, tensor in vars(layer).items() if isinstance(tensor, torch.Tensor)}
        self.counter_name = next(name for name, tensor in held.items() if tensor.numel() == 1)
        declared = dict.fromkeys(self.counter, held[self.counter_name])
        return Buffers(
            keys=layer.keys,
            values=layer.values,
            token=torch.zeros(1, 1, dtype=torch.int64, device=device),
            position=torch.zeros(1, 1, dtype=torch.int64, device=device),
            logits=torch.empty(1, 1, VOCABULARY, device=device),
            **declared,
        )

    def cases(self) -> Any:
        return case(token=integers(0, VOCABULARY - 1))

    def stage(self, buffers: Buffers, case: Case) -> None:
        buffers.token.fill_(case.token)
        buffers.position.fill_(4)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        with torch.no_grad():
            step = self.model(buffers.token, past_key_values=self.cache, position_ids=buffers.position)
        buffers.logits.copy_(step.logits)
        return {"logits": buffers.logits}


class LlamaDecodeWithCounter(LlamaDecode):
    """The same step with the counter declared, so that the harness puts it back after warm-up."""

    mutates = ("keys", "values", "counter")
    counter = ("counter",)


def test_the_cache_s_own_counter_is_found_to_drift_in_warm_up() -> None:
    """Expected: GC604 first, naming the counter that nobody declared."""
    (target,) = fuzz(LlamaDecode, backend="emulator", examples=5, seed=1).targets
    assert target.verdict is Verdict.FAIL
    assert target.findings[0].code == "GC604", [f"{f.code}: {f.message}" for f in target.findings]
    assert "cumulative_length" in target.findings[0].message


def test_the_step_with_its_counter_declared_is_clean() -> None:
    (target,) = fuzz(LlamaDecodeWithCounter, backend="emulator", examples=5, seed=1).targets
    assert [finding for finding in target.findings if finding.severity is not Severity.NOTE] == []
    assert target.verdict is Verdict.PASS
