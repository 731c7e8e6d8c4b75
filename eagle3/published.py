"""Names and shapes of the tensors in published Eagle3 heads, and heads of random numbers in that form."""

from __future__ import annotations

import torch

from eagle3.config import HeadConfig

# Of no use to a head that drafts.
TRAINING_ONLY = ("t2d", "verifier_norm.weight", "verifier_lm_head.weight", "midlayer.self_attn.rotary_emb.inv_freq")


def expected_shapes(config: HeadConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor that a checkpoint with this config must have, by its published name."""
    hidden, target, inner = config.hidden_size, config.target_hidden_size, config.intermediate_size
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    joined = config.num_captures * target
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, joined),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.self_attn.q_proj.weight": (queries, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (keys, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (keys, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, queries),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        "midlayer.mlp.gate_proj.weight": (inner, hidden),
        "midlayer.mlp.up_proj.weight": (inner, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, inner),
    }
    if config.final_norm:
        shapes["norm.weight"] = (hidden,)
    if config.fc_bias:
        shapes["fc.bias"] = (hidden,)
    if config.norm_before_fc:
        shapes["input_norm.weight"] = (joined,)
    if config.fc_norm:
        shapes |= {f"fc_norm.{number}.weight": (target,) for number in range(config.num_captures)}
    if config.draft_vocab_size != config.vocab_size:
        shapes["d2t"] = (config.draft_vocab_size,)
    return shapes


def optional_shapes(config: HeadConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor that such a checkpoint may have besides, by its published name."""
    return {
        "d2t": (config.draft_vocab_size,),
        "lm_head.weight": (config.draft_vocab_size, config.hidden_size),
        "embed_tokens.weight": (config.vocab_size, config.hidden_size),
    }


def published_name(name: str) -> str:
    """The name that stands for all spellings of a tensor: without ``model.``, its layer called ``midlayer``."""
    name = name.removeprefix("model.")
    return f"midlayer.{name.removeprefix('layers.0.')}" if name.startswith("layers.0.") else name


def random_tensors(config: HeadConfig, seed: int, *, tables: bool = True) -> dict[str, torch.Tensor]:
    """A checkpoint of random numbers, fp32 on the CPU, whose activations keep their size from layer to layer.

    Args:
        config: says names and shapes.
        seed: of the numbers.
        tables: with an embedding and an LM head of its own.
    """
    draw = torch.Generator().manual_seed(seed)
    shapes = expected_shapes(config)
    if tables:
        shapes |= {name: shape for name, shape in optional_shapes(config).items() if name != "d2t"}
    tensors = {}
    for name, shape in shapes.items():
        if name == "d2t":
            used = torch.randperm(config.vocab_size, generator=draw)[: config.draft_vocab_size].sort().values
            tensors[name] = used - torch.arange(config.draft_vocab_size)
        elif len(shape) == 1:
            tensors[name] = 1.0 + 0.1 * torch.randn(shape, generator=draw)
        else:
            scale = 1.0 if name == "embed_tokens.weight" else shape[1] ** -0.5
            tensors[name] = torch.randn(shape, generator=draw) * scale
    return tensors
