"""Checkpoints with the published keys and shapes load; whatever differs is named, all of it at once."""

from __future__ import annotations

import dataclasses
import json
import pickle
import sys

import pytest
import torch
from safetensors.torch import save_file

from eagle3.checkpoint import TargetTables, load_head
from eagle3.config import HeadConfig
from eagle3.errors import CheckpointFormat, CheckpointMismatch
from eagle3.published import expected_shapes, random_tensors

SMALL = HeadConfig(
    hidden_size=32,
    intermediate_size=48,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=40,
    draft_vocab_size=24,
    target_hidden_size=32,
    max_position_embeddings=64,
    dtype=torch.float32,
)
FIELDS = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
    "draft_vocab_size": 24,
    "max_position_embeddings": 64,
    "torch_dtype": "float32",
}
# A public listing of yuhuili/EAGLE3-LLaMA3.1-Instruct-8B.
LLAMA_8B = {
    "d2t": (torch.int64, 32000),
    "t2d": (torch.bool, 128256),
    "fc.weight": (torch.float16, 4096, 12288),
    "midlayer.hidden_norm.weight": (torch.float16, 4096),
    "midlayer.input_layernorm.weight": (torch.float16, 4096),
    "midlayer.post_attention_layernorm.weight": (torch.float16, 4096),
    "norm.weight": (torch.float16, 4096),
    "midlayer.self_attn.q_proj.weight": (torch.float16, 4096, 8192),
    "midlayer.self_attn.k_proj.weight": (torch.float16, 1024, 8192),
    "midlayer.self_attn.v_proj.weight": (torch.float16, 1024, 8192),
    "midlayer.self_attn.o_proj.weight": (torch.float16, 4096, 4096),
    "midlayer.mlp.gate_proj.weight": (torch.float16, 14336, 4096),
    "midlayer.mlp.up_proj.weight": (torch.float16, 14336, 4096),
    "midlayer.mlp.down_proj.weight": (torch.float16, 4096, 14336),
    "lm_head.weight": (torch.float16, 32000, 4096),
}
QWEN_SMALL = {
    "d2t": (torch.int64, 32000),
    "t2d": (torch.bool, 151936),
    "fc.weight": (torch.bfloat16, 1024, 3072),
    "midlayer.hidden_norm.weight": (torch.bfloat16, 1024),
    "midlayer.input_layernorm.weight": (torch.bfloat16, 1024),
    "midlayer.post_attention_layernorm.weight": (torch.bfloat16, 1024),
    "norm.weight": (torch.bfloat16, 1024),
    "midlayer.self_attn.q_proj.weight": (torch.bfloat16, 2048, 2048),
    "midlayer.self_attn.k_proj.weight": (torch.bfloat16, 1024, 2048),
    "midlayer.self_attn.v_proj.weight": (torch.bfloat16, 1024, 2048),
    "midlayer.self_attn.o_proj.weight": (torch.bfloat16, 1024, 2048),
    "midlayer.mlp.gate_proj.weight": (torch.bfloat16, 3072, 1024),
    "midlayer.mlp.up_proj.weight": (torch.bfloat16, 3072, 1024),
    "midlayer.mlp.down_proj.weight": (torch.bfloat16, 1024, 3072),
    "lm_head.weight": (torch.bfloat16, 32000, 1024),
}


def write(folder, tensors, fields=FIELDS, name="model.safetensors"):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / name)
    return folder


@pytest.mark.parametrize(
    ("listing", "hidden", "inner", "heads", "kv_heads", "vocab"),
    [(LLAMA_8B, 4096, 14336, 32, 8, 128256), (QWEN_SMALL, 1024, 3072, 16, 8, 151936)],
    ids=["llama-3.1-8b", "qwen3-0.6b"],
)
def test_published_keys_and_full_shapes_load_without_being_allocated(listing, hidden, inner, heads, kv_heads, vocab):
    tensors = {name: torch.empty(shape, dtype=dtype, device="meta") for name, (dtype, *shape) in listing.items()}
    config = HeadConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=128,
        vocab_size=vocab,
        draft_vocab_size=32000,
        target_hidden_size=hidden,
        max_position_embeddings=2048,
    )
    table = torch.empty(vocab, hidden, device="meta")
    head = load_head(tensors, config, target=TargetTables(table, table), device="meta")
    assert head.embed is table and head.lm_head.shape == (32000, hidden)
    assert head.weights.qkv.shape == ((heads + 2 * kv_heads) * 128, 2 * hidden)
    assert head.weights.gate_up.shape == (2 * inner, hidden)
    # Nothing is taken for granted: each key that the list has is one that is asked for or known to be idle.
    assert set(listing) - set(expected_shapes(config)) == {"t2d", "lm_head.weight"}


def test_a_folder_gives_the_tensors_that_were_written(tmp_path):
    tensors = random_tensors(SMALL, 0)
    head = load_head(write(tmp_path, tensors))
    assert head.config == SMALL
    weights = head.weights
    q, k, v = weights.qkv.split([32, 16, 16])
    for name, part in (("q", q), ("k", k), ("v", v)):
        assert torch.equal(part, tensors[f"midlayer.self_attn.{name}_proj.weight"])
    assert torch.equal(weights.gate_up[48:], tensors["midlayer.mlp.up_proj.weight"])
    assert torch.equal(weights.norm, tensors["norm.weight"]) and torch.equal(weights.fc, tensors["fc.weight"])
    assert torch.equal(weights.d2t, tensors["d2t"])
    assert torch.equal(head.embed, tensors["embed_tokens.weight"])
    assert torch.equal(head.lm_head, tensors["lm_head.weight"])
    assert load_head(tmp_path, dtype=torch.bfloat16).weights.fc.dtype is torch.bfloat16


def test_spellings_files_and_shards_make_no_difference(tmp_path):
    tensors = random_tensors(SMALL, 1)
    expected = load_head(tensors, SMALL)
    spelled = {f"model.{name.replace('midlayer.', 'layers.0.')}": tensor for name, tensor in tensors.items()}
    spelled["t2d"] = torch.zeros(40, dtype=torch.bool)
    spelled["verifier_norm.weight"] = torch.ones(32)
    whole = write(tmp_path / "whole", spelled)
    names = sorted(spelled)
    shards = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for shard, part in shards.items():
        folder = write(tmp_path / "shards", {name: spelled[name] for name in part}, name=shard)
    index = {"weight_map": {name: shard for shard, part in shards.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for source in (whole, whole / "model.safetensors", folder):
        got = load_head(source).weights
        for field in dataclasses.fields(got):
            value, wanted = getattr(got, field.name), getattr(expected.weights, field.name)
            assert value == wanted if isinstance(value, (tuple, type(None))) else torch.equal(value, wanted)
    (folder / "b.safetensors").unlink()
    with pytest.raises(CheckpointFormat, match=r"lacks b\.safetensors"):
        load_head(folder)
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointFormat, match="expected an object with a weight_map"):
        load_head(folder)


def test_all_that_is_wrong_is_named_in_one_message():
    tensors = random_tensors(SMALL, 2)
    del tensors["midlayer.self_attn.k_proj.weight"], tensors["d2t"]
    tensors["fc.weight"] = torch.zeros(32, 64)
    tensors["norm.weight"] = torch.zeros(32, dtype=torch.int32)
    tensors["fc_norm.0.weight"] = torch.ones(32)
    tensors["layers.0.hidden_norm.weight"] = torch.ones(32)
    with pytest.raises(CheckpointMismatch) as caught:
        load_head(tensors, SMALL)
    for words in (
        "missing: midlayer.self_attn.k_proj.weight [16, 64], d2t [24]",
        "unknown: fc_norm.0.weight",
        "fc.weight is [32, 64], expected [32, 96]",
        "norm.weight is torch.int32",
        "two spellings of midlayer.hidden_norm.weight",
    ):
        assert words in str(caught.value)


def test_nothing_is_read_before_everything_fits(tmp_path):
    tensors = random_tensors(SMALL, 2)
    tensors["fc.weight"] = torch.zeros(1, 1)
    path = write(tmp_path, tensors) / "model.safetensors"
    # The data is destroyed; the headers say enough.
    path.write_bytes(path.read_bytes()[:-64] + b"\xff" * 64)
    with pytest.raises(CheckpointMismatch, match=r"fc\.weight is \[1, 1\]"):
        load_head(tmp_path)


def test_what_the_target_shares():
    tensors = random_tensors(SMALL, 3, tables=False)
    table = torch.zeros(40, 32)
    with pytest.raises(CheckpointMismatch, match=r"embed_tokens.*pass target=; lm_head.*pass target="):
        load_head(tensors, SMALL)
    # The target's LM head has its own vocabulary, not the head's.
    with pytest.raises(CheckpointMismatch, match=r"lm_head.*\[40, 32\], expected \[24, 32\]"):
        load_head(tensors, SMALL, target=TargetTables(table, table))
    config = dataclasses.replace(SMALL, draft_vocab_size=40)
    tensors = random_tensors(config, 3, tables=False)
    assert "d2t" not in tensors
    head = load_head(tensors, config, target=TargetTables(table, table))
    assert head.embed is table and head.lm_head is table and head.weights.d2t is None
    wide = torch.zeros(40, 64)
    with pytest.raises(CheckpointMismatch, match=r"embed_tokens.*\[40, 64\], expected \[40, 32\]"):
        load_head(tensors, config, target=TargetTables(wide, table))


@pytest.mark.parametrize(
    "change",
    [{"fc_norm": True}, {"norm_before_fc": True}, {"fc_bias": True}, {"num_captures": 1}, {"target_hidden_size": 16}],
    ids=str,
)
def test_variants_ask_for_their_own_tensors(change):
    config = dataclasses.replace(SMALL, **change)
    head = load_head(random_tensors(config, 4), config)
    assert head.weights.fc.shape == (32, config.num_captures * config.target_hidden_size)
    if change.keys() & {"fc_norm", "norm_before_fc", "fc_bias"}:
        with pytest.raises(CheckpointMismatch, match="unknown"):
            load_head(random_tensors(config, 4), SMALL)
        with pytest.raises(CheckpointMismatch, match="missing"):
            load_head(random_tensors(SMALL, 4), config)


def test_token_ids_in_place_of_offsets_are_noticed():
    tensors = random_tensors(SMALL, 5)
    tensors["d2t"] = tensors["d2t"] + torch.arange(24)
    with pytest.raises(CheckpointMismatch, match=r"outside the target's 40 tokens.*not token ids"):
        load_head(tensors, SMALL)
    tensors["d2t"] = -torch.arange(24)
    with pytest.raises(CheckpointMismatch, match="23 to tokens that another one leads to"):
        load_head(tensors, SMALL)


def test_a_pickle_is_never_opened(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("the pickle was opened",))

    (tmp_path / "config.json").write_text(json.dumps(FIELDS))
    with pytest.raises(CheckpointFormat, match="has no safetensors file"):
        load_head(tmp_path)
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(pickle.dumps(Trap()))
    for source in (tmp_path, path):
        with pytest.raises(CheckpointFormat, match=r"pytorch_model\.bin .*convert it once.*save_file"):
            load_head(source)


def test_a_broken_file_and_a_missing_config_or_reader_are_said(tmp_path, monkeypatch):
    folder = write(tmp_path, random_tensors(SMALL, 6))
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(CheckpointFormat, match="no whole safetensors file"):
        load_head(folder)
    with pytest.raises(CheckpointFormat, match="pass config="):
        load_head(random_tensors(SMALL, 6))
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(CheckpointFormat, match=r"install torch-graphcheck\[eagle3\]"):
        load_head(folder)
