"""The three published styles of a head's config give one description, and what cannot be served is refused by name."""

from __future__ import annotations

import json

import pytest
import torch

from eagle3.config import HeadConfig, inputs_of_outputs, parse_config, read_config
from eagle3.errors import HeadConfigRefused

PLAIN = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "vocab_size": 128256,
    "draft_vocab_size": 32000,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
}
MODELOPT = {
    **PLAIN,
    "eagle_config": {
        "eagle_aux_hidden_state_layer_ids": [1, 15, 28],
        "use_aux_hidden_state": True,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
        "parallel_draft_heads_num_layers": 1,
    },
}
SPECULATORS = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "draft_vocab_size": 32000,
    "torch_dtype": "float16",
    "eagle_aux_hidden_state_layer_ids": [2, 16, 29],
    "transformer_layer_config": {
        name: PLAIN[name]
        for name in PLAIN
        if name not in ("architectures", "draft_vocab_size", "torch_dtype", "tie_word_embeddings")
    },
    "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "meta-llama/Llama-3.1-8B-Instruct"}},
}


def without(fields: dict, *names: str) -> dict:
    return {name: value for name, value in fields.items() if name not in names}


def test_the_plain_style():
    config = parse_config(PLAIN)
    assert config == HeadConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=128256,
        draft_vocab_size=32000,
        target_hidden_size=4096,
        max_position_embeddings=2048,
        rope_theta=500000.0,
        dtype=torch.float16,
    )
    assert config.rotary_dim == 128 and config.captured(32) == (2, 16, 29)


def test_three_styles_name_the_same_layers_of_the_same_head():
    first, second, third = parse_config(PLAIN), parse_config(MODELOPT), parse_config(SPECULATORS)
    assert second == third
    assert first.captured(32) == second.captured(32) == third.captured(32) == (2, 16, 29)


def test_default_layers_are_those_of_public_heads():
    # MiniMax-M3 has 60 layers; its head was trained on (2, 30, 57), inputs.
    assert parse_config(PLAIN).captured(60) == (2, 30, 57)
    assert parse_config(PLAIN).captured(8) == inputs_of_outputs((1, 3, 4)) == (2, 4, 5)
    with pytest.raises(HeadConfigRefused, match="5 layers has no default"):
        parse_config(PLAIN).captured(5)


def test_the_convention_can_be_said_and_must_be_where_the_style_does_not_say_it():
    named = {**PLAIN, "eagle_aux_hidden_state_layer_ids": [1, 15, 28]}
    with pytest.raises(HeadConfigRefused, match=r"\[1, 15, 28\] without the convention"):
        parse_config(named)
    assert parse_config(named, captures="outputs").capture_inputs == (2, 16, 29)
    assert parse_config(named, captures="inputs").capture_inputs == (1, 15, 28)
    assert parse_config(MODELOPT, captures="inputs").capture_inputs == (1, 15, 28)
    with pytest.raises(HeadConfigRefused, match="captures 'layers'"):
        parse_config(PLAIN, captures="layers")


def test_minus_one_is_the_final_hidden_state_and_comes_last():
    config = parse_config({**SPECULATORS, "eagle_aux_hidden_state_layer_ids": [-1, 2, 16]})
    assert config.captured(32) == (2, 16, 32)
    with pytest.raises(HeadConfigRefused, match=r"\(2, 16, 16\) of a target of 16"):
        config.captured(16)
    with pytest.raises(HeadConfigRefused, match=r"\(2, 12, 16\) of a target of 12"):
        parse_config({**SPECULATORS, "eagle_aux_hidden_state_layer_ids": [16, 2, -1]}).captured(12)


def test_a_head_without_auxiliary_states_reads_the_last_one():
    nested = {"use_aux_hidden_state": False, "eagle_aux_hidden_state_layer_ids": []}
    config = parse_config({**PLAIN, "eagle_config": nested})
    assert config.num_captures == 1 and config.captured(32) == (32,)


def test_norm_output_means_two_things():
    assert parse_config({**PLAIN, "norm_output": False}).final_norm is False
    assert parse_config({**PLAIN, "norm_output": True}).norm_output is False
    config = parse_config({**SPECULATORS, "norm_output": True, "norm_before_residual": True, "fc_norm": True})
    assert config.norm_output and config.norm_before_residual and config.fc_norm and config.final_norm


def test_rotation_in_one_object_and_llama_4_widths():
    rotation = {"partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_type": "default"}
    config = parse_config({**PLAIN, "rope_parameters": rotation, "intermediate_size_mlp": 8192})
    assert (config.rotary_dim, config.rope_theta, config.rope_scaling) == (32, 1e7, None)
    assert config.intermediate_size == 8192
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 8192
    assert parse_config({**PLAIN, "rope_scaling": scaling}).rope_scaling == scaling


def test_every_objection_is_named():
    with pytest.raises(
        HeadConfigRefused, match=r"num_hidden_layers 2.*attention_bias.*hidden_size, vocab_size missing"
    ):
        parse_config({**without(PLAIN, "hidden_size", "vocab_size"), "num_hidden_layers": 2, "attention_bias": True})
    nested = {"use_mtp_layernorm": True, "parallel_draft_step": 3}
    with pytest.raises(HeadConfigRefused, match=r"use_mtp_layernorm True.*parallel_draft_step 3"):
        parse_config({**PLAIN, "eagle_config": nested})
    bad = {"num_key_value_heads": 5, "draft_vocab_size": 128257, "fc_norm": True, "norm_before_fc": True}
    with pytest.raises(HeadConfigRefused, match=r"5 does not divide 32; draft_vocab_size 128257.*exclude each other"):
        parse_config({**PLAIN, **bad})
    with pytest.raises(HeadConfigRefused, match="'yarn', expected one of default, linear, llama3"):
        parse_config({**PLAIN, "rope_scaling": {"rope_type": "yarn"}})
    with pytest.raises(HeadConfigRefused, match="hidden_size = True"):
        parse_config({**PLAIN, "hidden_size": True, "target_hidden_size": 64, "head_dim": 64})
    with pytest.raises(HeadConfigRefused, match="'float8', expected"):
        parse_config({**PLAIN, "torch_dtype": "float8"})
    with pytest.raises(HeadConfigRefused, match="expected 'eagle3' and an object"):
        parse_config({**SPECULATORS, "speculators_model_type": "eagle"})


def test_reading_a_folder(tmp_path):
    with pytest.raises(HeadConfigRefused, match=r"config\.json cannot be read"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(HeadConfigRefused, match="holds a list"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(MODELOPT))
    assert read_config(tmp_path) == parse_config(MODELOPT)
