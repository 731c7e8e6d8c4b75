"""A Hugging Face decode step with a static cache, unmodified."""

from __future__ import annotations

import inspect

import pytest
import torch

from graphcheck.backend.emulator import EmulatorBackend

transformers = pytest.importorskip("transformers")
masking_utils = pytest.importorskip("transformers.masking_utils")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_llama_decode_step_replays_bit_for_bit(attention: str, backend: EmulatorBackend) -> None:
    if attention == "eager" and "torch.tensor(" in inspect.getsource(masking_utils.eager_mask):
        pytest.skip("this version uploads a scalar for its mask, which CUDA refuses in a capture")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=256,
        max_position_embeddings=128,
        attn_implementation=attention,
    )
    model = transformers.LlamaForCausalLM(config).eval().to("cuda")
    cache = transformers.StaticCache(config=config, max_cache_len=32)
    model(torch.tensor([[5, 6, 7, 8]], device="cuda"), past_key_values=cache)
    token, position = torch.tensor([[9]], device="cuda"), torch.tensor([4], device="cuda")

    def step() -> dict[str, torch.Tensor]:
        return {"logits": model(token, past_key_values=cache, position_ids=position[None]).logits}

    state = [value for layer in cache.layers for value in vars(layer).values() if isinstance(value, torch.Tensor)]
    before = [tensor.clone() for tensor in state]

    def put_back() -> None:
        for tensor, saved in zip(state, before, strict=True):
            tensor.copy_(saved)

    counters = {str(number): tensor for number, tensor in enumerate(state) if tensor.numel() == 1}
    assert counters
    _, moved = backend.elements_written(step, counters)
    assert moved is not None
    assert all(bool(moved[name].all()) for name in counters), "the warm-up run advances the cache's own counter"
    put_back()
    recording = backend.record(step, backend.pool())
    assert recording.findings() == []
    assert recording.outputs["logits"].isnan().all()
    for number in (9, 17):
        token.fill_(number)
        put_back()
        expected = step()["logits"].clone()
        put_back()
        recording.replay()
        assert torch.equal(recording.outputs["logits"], expected)
