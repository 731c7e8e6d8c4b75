"""The target as a trainable module whose parameters have the names of the serving weights."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F

from eagle3.m3.config import TargetConfig
from eagle3.m3.training.blocks import FeedForward, Norm, Rotation, exact_logits, initialise
from eagle3.m3.training.selection import (
    causal,
    index_loss,
    own_pages,
    page_mass,
    page_scores,
    select_pages,
    token_mask,
)


@dataclass
class Past:
    """Keys and values of the tokens before those of a call, for generation; grows in place.

    Args:
        capacity: most tokens.
        length: tokens that every layer holds.
    """

    capacity: int
    length: int = 0
    held: dict[tuple[int, str], torch.Tensor] = field(default_factory=dict)

    def append(self, layer: int, name: str, new: torch.Tensor) -> torch.Tensor:
        """Everything so far, [B, heads, N, D], with ``new`` [B, heads, S, D] at the end."""
        if (layer, name) not in self.held:
            shape = (*new.shape[:2], self.capacity, new.shape[3])
            self.held[layer, name] = new.new_empty(shape)
        buffer, end = self.held[layer, name], self.length + new.shape[2]
        buffer[:, :, self.length : end] = new
        return buffer[:, :, :end]


@dataclass
class Lessons:
    """What a forward notes for the index branches.

    Args:
        sequences: leading sequences of the batch on which the branches are taught; each costs a dense attention map.
        losses: one for each sparse layer.
        covered: dense attention mass on the selected pages, one for each sparse layer.
    """

    sequences: int
    losses: list[torch.Tensor] = field(default_factory=list)
    covered: list[torch.Tensor] = field(default_factory=list)


class SelfAttention(nn.Module):
    """Attention of one layer; a sparse one attends densely until it selects."""

    def __init__(self, config: TargetConfig, layer: int) -> None:
        super().__init__()
        self.config, self.layer = config, layer
        hidden, dim, eps = config.hidden_size, config.head_dim, config.rms_norm_eps
        self.q_proj = nn.Linear(hidden, config.q_heads * dim, bias=False)
        self.q_norm = Norm(dim, eps)
        self.k_proj = nn.Linear(hidden, config.kv_heads * dim, bias=False)
        self.k_norm = Norm(dim, eps)
        self.sparse = config.is_sparse(layer)
        if self.sparse:
            self.index_q_proj = nn.Linear(hidden, config.kv_heads * dim, bias=False)
            self.index_q_norm = Norm(dim, eps)
            self.index_k_proj = nn.Linear(hidden, dim, bias=False)
            self.index_k_norm = Norm(dim, eps)
        self.v_proj = nn.Linear(hidden, config.kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(config.q_heads * dim, hidden, bias=False)

    def forward(
        self,
        rows: torch.Tensor,
        rotation: Rotation,
        positions: torch.Tensor,
        selecting: bool,
        past: Past | None,
        lessons: Lessons | None,
    ) -> torch.Tensor:
        q = rotation(self.q_norm(self._heads(self.q_proj(rows))), positions)
        k = rotation(self.k_norm(self._heads(self.k_proj(rows))), positions)
        v = self._heads(self.v_proj(rows))
        q, k = q.to(v.dtype), k.to(v.dtype)
        if past is not None:
            k, v = past.append(self.layer, "k", k), past.append(self.layer, "v", v)
        mask = None
        if self.sparse:
            # The index branch learns to rank, and must not bend the trunk to its own ends.
            mask = self._select(rows.detach(), q.detach(), k.detach(), rotation, positions, selecting, past, lessons)
        group = self.config.q_heads // self.config.kv_heads
        if q.shape[2] == 1:
            # One row sees what its mask says and nothing comes after it: the heads of a group can stand as rows.
            together = q.reshape(*k.shape[:2], group, q.shape[3])
            attended = F.scaled_dot_product_attention(together, k, v, attn_mask=mask)
            return self._out(attended.reshape(q.shape[0], 1, -1))
        keys, values = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        if mask is None and q.shape[2] == keys.shape[2]:
            attended = F.scaled_dot_product_attention(q, keys, values, is_causal=True)
        else:
            seen = causal(q.shape[2], keys.shape[2], q.device) if mask is None else mask.repeat_interleave(group, 1)
            attended = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
        return self._out(attended.transpose(1, 2).flatten(2))

    def _out(self, attended: torch.Tensor) -> torch.Tensor:
        return self.o_proj(attended)  # type: ignore[no-any-return]

    def _heads(self, flat: torch.Tensor) -> torch.Tensor:
        return flat.view(*flat.shape[:2], -1, self.config.head_dim).transpose(1, 2)

    def _select(
        self,
        rows: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        rotation: Rotation,
        positions: torch.Tensor,
        selecting: bool,
        past: Past | None,
        lessons: Lessons | None,
    ) -> torch.Tensor | None:
        """The mask bool [B, Hkv, S, N] of the selected tokens, or None where nothing is selected yet."""
        page_size = self.config.page_size
        index_q = rotation(self.index_q_norm(self._heads(self.index_q_proj(rows))), positions).to(q.dtype)
        index_k = rotation(self.index_k_norm(self._heads(self.index_k_proj(rows))), positions).to(q.dtype)
        if past is not None:
            index_k = past.append(self.layer, "index_k", index_k)
        index_k = index_k.squeeze(1)
        own = own_pages(q.shape[2], k.shape[2], page_size, q.device)
        if lessons is not None:
            taught = slice(0, lessons.sequences)
            scale = self.config.head_dim**-0.5
            mass = page_mass(q[taught], k[taught], page_size, scale)
            scores = page_scores(index_q[taught], index_k[taught], page_size)
            lessons.losses.append(index_loss(scores, mass, own, scale))
            chosen = select_pages(scores.detach(), own, self.config.top_k)
            lessons.covered.append((mass * chosen).sum(-1).mean())
        if not selecting:
            return None
        with torch.no_grad():
            scores = page_scores(index_q, index_k, page_size)
            return token_mask(select_pages(scores, own, self.config.top_k), k.shape[2], page_size)


class Layer(nn.Module):
    """One layer: attention, then feed-forward, each on a normed copy of the residual stream."""

    def __init__(self, config: TargetConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = SelfAttention(config, layer)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.mlp = FeedForward(config.hidden_size, config.intermediate_size)

    def forward(
        self,
        hidden: torch.Tensor,
        rotation: Rotation,
        positions: torch.Tensor,
        selecting: bool,
        past: Past | None,
        lessons: Lessons | None,
        dropout: float,
    ) -> torch.Tensor:
        attended = self.self_attn(self.input_layernorm(hidden), rotation, positions, selecting, past, lessons)
        hidden = hidden + F.dropout(attended, dropout, self.training)
        mixed = self.mlp(self.post_attention_layernorm(hidden))
        return hidden + F.dropout(mixed, dropout, self.training)


class TargetModel(nn.Module):
    """A trainable target over whole sequences; agrees with `eagle3.m3.target.Target` on the same weights once it selects.

    Args:
        config: sizes.
        seed: of the initial weights.

    Attributes:
        dropout: share of each layer's contributions that training drops.
        selecting: whether sparse layers attend to selected pages only; off until the index branches are warm.
    """

    def __init__(self, config: TargetConfig, seed: int) -> None:
        super().__init__()
        self.config = config
        self.dropout = 0.0
        self.selecting = False
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, layer) for layer in range(config.layers))
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.rotation = Rotation(config.max_seq_len, config.rotary_dim, config.rope_theta)
        initialise(self, seed, depth=config.layers)

    def forward(
        self, tokens: torch.Tensor, past: Past | None = None, lessons: Lessons | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [B, S, V] and captured inputs [B, S, 3 * H] of sequences; ``past`` grows by S tokens.

        Args:
            tokens: [B, S] int64, positions 0..S-1 or those behind ``past``.
            past: of the same sequences.
            lessons: noted for the index branches, if given.
        """
        first = 0 if past is None else past.length
        positions = torch.arange(first, first + tokens.shape[1], device=tokens.device)
        hidden = self.embed_tokens(tokens)
        captured = []
        for index, layer in enumerate(self.layers):
            if index in self.config.capture_layers:
                captured.append(hidden)
            hidden = layer(hidden, self.rotation, positions, self.selecting, past, lessons, self.dropout)
        if past is not None:
            past.length += tokens.shape[1]
        return exact_logits(self.norm(hidden), self.lm_head), torch.cat(captured, 2)
