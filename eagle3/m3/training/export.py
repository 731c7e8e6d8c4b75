"""The files of a trained pair: weights in bf16, configs, log and table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from eagle3.m3.config import TargetConfig
from eagle3.m3.training.head_model import HeadModel
from eagle3.m3.training.head_trainer import HeadRecipe, new_head
from eagle3.m3.training.model import TargetModel
from eagle3.m3.weights import load_target, save_target

TARGET, HEAD = "target", "head"
STORED = torch.bfloat16


def export_target(folder: Path, model: TargetModel) -> None:
    """``folder/target`` holds the target, rounded to bf16."""
    weights = {name: tensor.to(STORED) for name, tensor in model.state_dict().items()}
    save_target(folder / TARGET, model.config, weights)


def import_target(folder: Path, device: torch.device) -> TargetModel:
    """The stored target as a trainable model in fp32 that selects: what is measured is what is stored."""
    config, weights = load_target(folder / TARGET, device, torch.float32)
    model = TargetModel(config, seed=0).to(device)
    model.load_state_dict(weights)
    model.selecting = True
    return model.eval()


def export_head(folder: Path, head: HeadModel, target: TargetConfig, recipe: HeadRecipe) -> None:
    """``folder/head`` holds the head in the form of published ones, rounded to bf16, with its config in both styles."""
    place = folder / HEAD
    place.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.to(STORED) for name, tensor in head.state_dict().items()}
    known = torch.zeros(target.vocab_size, dtype=torch.bool)
    known[head.used.cpu()] = True
    tensors |= {"d2t": head.used.cpu() - torch.arange(head.used.shape[0]), "t2d": known}
    save_file(
        {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}, place / "model.safetensors"
    )
    _write_json(place / "config.json", head_config(target, recipe))
    _write_json(place / "config.speculators.json", speculators_config(target, recipe))


def import_head(folder: Path, target: TargetModel, recipe: HeadRecipe) -> HeadModel:
    """The stored head as a trainable model in fp32, for the stored target."""
    tensors = load_file(folder / HEAD / "model.safetensors")
    offsets = tensors.pop("d2t")
    del tensors["t2d"]
    head = new_head(target.config, target.state_dict(), offsets + torch.arange(offsets.shape[0]), recipe)
    head.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return head.eval()


def head_config(target: TargetConfig, recipe: HeadRecipe) -> dict[str, Any]:
    """The config of a head as EAGLE and ModelOpt write it: captured layers are named by their outputs."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **_layer(target, recipe),
        "draft_vocab_size": recipe.draft_vocab,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in target.capture_layers],
            "use_aux_hidden_state": True,
            "use_input_layernorm_in_first_layer": True,
            "use_last_layernorm": True,
            "use_mtp_layernorm": False,
        },
    }


def speculators_config(target: TargetConfig, recipe: HeadRecipe) -> dict[str, Any]:
    """The same as speculators writes it: captured layers are named by their inputs."""
    return {
        "speculators_model_type": "eagle3",
        "architectures": ["Eagle3Speculator"],
        "draft_vocab_size": recipe.draft_vocab,
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": list(target.capture_layers),
        "transformer_layer_config": {"model_type": "llama", **_layer(target, recipe)},
        "torch_dtype": "bfloat16",
    }


def _layer(target: TargetConfig, recipe: HeadRecipe) -> dict[str, Any]:
    return {
        "hidden_size": target.hidden_size,
        "intermediate_size": recipe.intermediate_size,
        "num_attention_heads": target.q_heads,
        "num_key_value_heads": target.kv_heads,
        "head_dim": target.head_dim,
        "num_hidden_layers": 1,
        "vocab_size": target.vocab_size,
        "max_position_embeddings": target.max_seq_len,
        "rms_norm_eps": target.rms_norm_eps,
        "rope_theta": target.rope_theta,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
    }


def export_log(folder: Path, log: Mapping[str, Any]) -> None:
    """``log.json`` holds the log with size and sha256 of every weight file; ``table.md`` its results in short."""
    files = {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(folder.rglob("*.safetensors"))
    }
    _write_json(folder / "log.json", {**log, "files": files})
    (folder / "table.md").write_text("\n".join(table(log)) + "\n", encoding="utf-8")


def table(log: Mapping[str, Any]) -> list[str]:
    """The results of a log as lines of Markdown; what was not measured is left out."""
    lines = ["# The byte-level pair on held-out modules", ""]
    bits = log.get("bits_per_byte")
    if bits:
        lines += ["| text | bits per byte |", "| --- | --- |"]
        lines += [f"| {name.replace('_', ' ')} | {value:.3f} |" for name, value in bits.items()] + [""]
    drafting = log.get("drafting")
    if drafting:
        lines += [
            f"Greedy continuations of {drafting['prompts']} held-out prompts of {drafting['prompt_tokens']} bytes by "
            f"{drafting['new_tokens']} bytes; {drafting['repetition']:.0%} of their 16-byte runs stood in them before.",
            "",
            "| L | AR | AL | AL of the first quarter | accepted at least 1, 2, ... drafts |",
            "| --- | --- | --- | --- | --- |",
        ]
        lines += [
            f"| {row['draft_len']} | {row['acceptance_rate']:.3f} | {row['acceptance_length']:.3f} | "
            f"{row['acceptance_length_of_first_quarter']:.3f} | {_shares(row['by_position'])} |"
            for row in drafting["acceptance"]
        ]
    return lines


def _shares(shares: Sequence[float]) -> str:
    return ", ".join(f"{share:.2f}" for share in shares)


def _write_json(path: Path, words: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(words, indent=1) + "\n", encoding="utf-8")
