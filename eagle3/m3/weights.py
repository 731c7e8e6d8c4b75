"""The tensors of a target: their names and shapes, random ones for tests, and the files that hold trained ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from eagle3.errors import CheckpointFormat
from eagle3.m3.config import TargetConfig
from eagle3.m3.errors import WeightsMismatch

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"


def shapes(config: TargetConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a target, in the order of its layers."""
    hidden, dim, wide = config.hidden_size, config.head_dim, config.intermediate_size
    named: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (config.vocab_size, hidden)}
    for layer in range(config.layers):
        heads = {"q": config.q_heads, "k": config.kv_heads}
        if config.is_sparse(layer):
            heads |= {"index_q": config.kv_heads, "index_k": 1}
        prefix = f"layers.{layer}"
        named[f"{prefix}.input_layernorm.weight"] = (hidden,)
        for name, count in heads.items():
            named[f"{prefix}.self_attn.{name}_proj.weight"] = (count * dim, hidden)
            named[f"{prefix}.self_attn.{name}_norm.weight"] = (dim,)
        named[f"{prefix}.self_attn.v_proj.weight"] = (config.kv_heads * dim, hidden)
        named[f"{prefix}.self_attn.o_proj.weight"] = (hidden, config.q_heads * dim)
        named[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
        named[f"{prefix}.mlp.gate_proj.weight"] = (wide, hidden)
        named[f"{prefix}.mlp.up_proj.weight"] = (wide, hidden)
        named[f"{prefix}.mlp.down_proj.weight"] = (hidden, wide)
    named["norm.weight"] = (hidden,)
    named["lm_head.weight"] = (config.vocab_size, hidden)
    return named


def random_weights(
    config: TargetConfig, seed: int, device: torch.device | str, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """Weights of a target that has learnt nothing, but whose activations stay of order one.

    The same seed gives the same weights on every device of one kind, in any dtype up to rounding.
    """
    draw = torch.Generator(device=device).manual_seed(seed)
    weights = {}
    for name, shape in shapes(config).items():
        drawn = torch.randn(shape, generator=draw, device=device)
        scaled = 1 + 0.1 * drawn if len(shape) == 1 else drawn * (1.0 if "embed" in name else shape[1] ** -0.5)
        weights[name] = scaled.to(dtype)
    return weights


def check_weights(config: TargetConfig, weights: Mapping[str, torch.Tensor]) -> None:
    """Pass if exactly the tensors of this target are there, in their shapes and in one floating-point type.

    Raises:
        WeightsMismatch: they are not; every objection is named.
    """
    expected = shapes(config)
    objections = [f"{name} is missing" for name in expected if name not in weights]
    objections += [f"{name} is unknown" for name in weights if name not in expected]
    objections += [
        f"{name} is {list(weights[name].shape)}, expected {list(shape)}"
        for name, shape in expected.items()
        if name in weights and tuple(weights[name].shape) != shape
    ]
    types = sorted({str(tensor.dtype) for tensor in weights.values()})
    if len(types) > 1 or any(not tensor.is_floating_point() for tensor in weights.values()):
        objections.append(f"types {', '.join(types)}, expected one of floating point")
    if objections:
        raise WeightsMismatch(
            f"these are not the weights of a target of {config.layers} layers: {'; '.join(objections)}"
        )


def save_target(folder: Path, config: TargetConfig, weights: Mapping[str, torch.Tensor]) -> None:
    """The folder holds sizes and weights, in the dtype they have.

    Raises:
        WeightsMismatch: they do not belong together.
    """
    # Whoever brings weights of their own need not have it.
    from safetensors.torch import save_file

    check_weights(config, weights)
    folder.mkdir(parents=True, exist_ok=True)
    config.save(folder / CONFIG_FILE)
    save_file({name: tensor.detach().contiguous().cpu() for name, tensor in weights.items()}, folder / WEIGHTS_FILE)


def load_target(
    folder: Path, device: torch.device | str, dtype: torch.dtype | None = None
) -> tuple[TargetConfig, dict[str, torch.Tensor]]:
    """Sizes and weights that `save_target` left in a folder.

    Args:
        dtype: of the weights; as stored by default.

    Raises:
        CheckpointFormat: the weights are no safetensors file, or safetensors is not installed.
        TargetConfigRefused: the sizes cannot be read.
        WeightsMismatch: the tensors are not those of such a target.
    """
    file = folder / WEIGHTS_FILE
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise CheckpointFormat(
            f"{file} cannot be read without safetensors; install torch-graphcheck[eagle3]"
        ) from error
    config = TargetConfig.load(folder / CONFIG_FILE)
    try:
        weights = load_file(file)
    except SafetensorError as error:
        raise CheckpointFormat(f"{file} is no whole safetensors file ({error}); fetch it again") from error
    check_weights(config, weights)
    return config, {name: tensor.to(device=device, dtype=dtype or tensor.dtype) for name, tensor in weights.items()}
