"""A pair that nobody trained and that drafts well enough to be tried: its text counts upwards, most of the time."""

from __future__ import annotations

import math

import torch

from eagle3.checkpoint import load_head
from eagle3.config import HeadConfig
from eagle3.head import DraftHead
from eagle3.m3.config import TargetConfig
from eagle3.m3.pair_files import Pair
from eagle3.m3.target import Target
from eagle3.m3.weights import random_weights
from eagle3.ops import Operators
from eagle3.published import random_tensors

# What silu leaves nearly as it is, so that the gated layer of the head is linear.
_OPEN = 8.0
_CONSTANT = 2.0


def successor_pair(
    config: TargetConfig,
    device: torch.device | str = "cpu",
    *,
    kernels: str = "portable",
    dtype: torch.dtype = torch.float32,
    unrest: float = 0.25,
    draft_unrest: float = 0.1,
    missing: float = 0.1,
    seed: int = 0,
) -> Pair:
    """A target that says the successor of its last token unless its context moves it, and a head that expects so.

    Random heads draft nothing that a target keeps, so with them every step looks like one without drafts. Here all
    counts occur: a draft is wrong where the context has moved the target, where the head's own context moves it, and
    where the draft vocabulary lacks the token. Tokens are points on circles, and the head turns them by one step.

    Args:
        config: sizes of the target; an even hidden size.
        device: where the weights lie.
        kernels: of the operators, as of `eagle3.ops.Operators`.
        dtype: of the weights.
        unrest: how much attention and feed-forward layers of the target add to what a token says itself.
        draft_unrest: how much attention of the head adds.
        missing: share of the vocabulary that the head has no word for.
        seed: of everything random.
    """
    draw = torch.Generator().manual_seed(seed)
    places, turn = _circle(config.vocab_size, config.hidden_size, draw)
    # Row v is the place of its predecessor.
    following = places.roll(1, 0)
    weights = random_weights(config, seed, "cpu")
    for name in weights:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] *= unrest
    weights |= {"embed_tokens.weight": places, "lm_head.weight": following, "norm.weight": torch.ones(places.shape[1])}
    operators = Operators(kernels)
    target = Target(config, {name: tensor.to(device, dtype) for name, tensor in weights.items()}, operators)
    of_head = _head_config(config, round(config.vocab_size * (1 - missing)), dtype)
    tensors = random_tensors(of_head, seed)
    used = tensors["d2t"] + torch.arange(of_head.draft_vocab_size) if "d2t" in tensors else torch.arange(len(places))
    tensors |= _turning(of_head, places, turn, tensors["midlayer.self_attn.o_proj.weight"] * draft_unrest)
    tensors |= {"embed_tokens.weight": places, "lm_head.weight": following[used]}
    loaded = load_head(tensors, of_head, device=device)
    return Pair(target, DraftHead(of_head, loaded.weights, loaded.embed, loaded.lm_head, operators))


def _circle(count: int, width: int, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Places [count, width] of all tokens, of one length, and the rotation [width, width] from each to the next."""
    circles = width // 2 - 1
    speeds = 1 + torch.randperm(count - 1, generator=draw)[torch.arange(circles) % (count - 1)]
    steps = speeds * (2 * math.pi / count)
    angles = torch.arange(count).unsqueeze(1) * steps
    fixed = torch.full((count, 2), _CONSTANT)
    turn = torch.eye(width)
    for circle, step in enumerate(steps.tolist()):
        first = 2 + 2 * circle
        turn[first : first + 2, first : first + 2] = torch.tensor(
            [[math.cos(step), -math.sin(step)], [math.sin(step), math.cos(step)]]
        )
    return torch.cat([fixed, torch.stack([angles.cos(), angles.sin()], 2).flatten(1)], 1), turn


def _head_config(config: TargetConfig, draft_vocab_size: int, dtype: torch.dtype) -> HeadConfig:
    return HeadConfig(
        hidden_size=config.hidden_size,
        intermediate_size=max(config.intermediate_size, config.hidden_size),
        num_attention_heads=config.q_heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        vocab_size=config.vocab_size,
        draft_vocab_size=draft_vocab_size,
        target_hidden_size=config.hidden_size,
        max_position_embeddings=config.max_seq_len,
        capture_inputs=config.capture_layers,
        dtype=dtype,
    )


def _turning(
    config: HeadConfig, places: torch.Tensor, turn: torch.Tensor, attention: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Tensors of a head whose hidden state is the first captured one, one step further for each application."""
    width, inner = config.hidden_size, config.intermediate_size
    size = float(places[0].square().mean().sqrt())
    opened = torch.nn.functional.silu(torch.tensor(_OPEN)).item()
    fuse = torch.zeros(width, config.num_captures * width)
    fuse[:, :width] = torch.eye(width)
    gate, up, down = torch.zeros(inner, width), torch.zeros(inner, width), torch.zeros(width, inner)
    gate[:, 0] = _OPEN * size / _CONSTANT
    up[:width] = turn - torch.eye(width)
    down[:, :width] = torch.eye(width) * (size / opened)
    return {
        "fc.weight": fuse,
        "midlayer.post_attention_layernorm.weight": torch.ones(width),
        "midlayer.self_attn.o_proj.weight": attention,
        "midlayer.mlp.gate_proj.weight": gate,
        "midlayer.mlp.up_proj.weight": up,
        "midlayer.mlp.down_proj.weight": down,
        "norm.weight": torch.ones(width),
    }
