"""The draft head as a trainable module, unrolled over its own outputs as in drafting."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from eagle3.m3.training.blocks import FeedForward, Norm, Rotation, exact_logits, initialise


class _Attention(nn.Module):
    """Projections of the draft layer; its first three take embedding and hidden state side by side."""

    def __init__(self, hidden: int, q_heads: int, kv_heads: int, dim: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(2 * hidden, q_heads * dim, bias=False)
        self.k_proj = nn.Linear(2 * hidden, kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(2 * hidden, kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(q_heads * dim, hidden, bias=False)


class _DraftLayer(nn.Module):
    def __init__(self, hidden: int, wide: int, q_heads: int, kv_heads: int, dim: int, eps: float) -> None:
        super().__init__()
        self.hidden_norm = Norm(hidden, eps)
        self.input_layernorm = Norm(hidden, eps)
        self.self_attn = _Attention(hidden, q_heads, kv_heads, dim)
        self.post_attention_layernorm = Norm(hidden, eps)
        self.mlp = FeedForward(hidden, wide)


class HeadModel(nn.Module):
    """A trainable EAGLE-3 head; its parameters have the names of published heads.

    Training-time test: the layer is applied ``length`` times over the same rows, each time to its own output
    (arXiv 2503.01840; ``SafeAILab/EAGLE eagle/traineagle3/cnets.py``).

    Args:
        embedding: of the target, [V, H]; frozen and not among the parameters.
        used: target ids of the draft vocabulary, [Vd] int64, ascending.
        captured_size: width of what the target shows of a token.
        q_heads, kv_heads, head_dim, intermediate_size, eps, theta, max_seq_len: sizes of the draft layer.
        seed: of the initial weights.
    """

    embedding: torch.Tensor
    used: torch.Tensor

    def __init__(
        self,
        embedding: torch.Tensor,
        used: torch.Tensor,
        *,
        captured_size: int,
        q_heads: int,
        kv_heads: int,
        head_dim: int,
        intermediate_size: int,
        eps: float,
        theta: float,
        max_seq_len: int,
        seed: int,
    ) -> None:
        super().__init__()
        hidden = embedding.shape[1]
        self.kv_heads, self.head_dim = kv_heads, head_dim
        self.fc = nn.Linear(captured_size, hidden, bias=False)
        self.midlayer = _DraftLayer(hidden, intermediate_size, q_heads, kv_heads, head_dim, eps)
        self.norm = Norm(hidden, eps)
        self.lm_head = nn.Linear(hidden, used.shape[0], bias=False)
        self.rotation = Rotation(max_seq_len, head_dim, theta)
        self.register_buffer("embedding", embedding.detach().float(), persistent=False)
        self.register_buffer("used", used, persistent=False)
        initialise(self, seed, depth=1)

    def unroll(
        self, captured: torch.Tensor, tokens: torch.Tensor, length: int, *, own_tokens: bool = False
    ) -> list[torch.Tensor]:
        """Draft logits [B, R, Vd] of each step, R = S - 1 - ``length``.

        Row t of step j follows the target's features of position t and the tokens t + 1 to t + 1 + j, and says what
        comes at t + 2 + j. It attends to the first step's keys up to row t, and to those of its own later steps.

        Args:
            captured: [B, S, 3 * H] of the target.
            tokens: [B, S] int64.
            length: steps, L.
            own_tokens: later steps follow the head's own choices, as drafting does, instead of ``tokens``.
        """
        rows = tokens.shape[1] - 1 - length
        row = torch.arange(rows, device=tokens.device)
        hidden = self.fc(captured[:, :rows])
        next_tokens = tokens[:, 1 : 1 + rows]
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        steps = []
        for step in range(length):
            hidden = self._layer(F.embedding(next_tokens, self.embedding), hidden, row + step, keys, values)
            steps.append(exact_logits(self.norm(hidden), self.lm_head))
            following = tokens[:, 2 + step : 2 + step + rows]
            next_tokens = self.used[steps[-1].argmax(-1)] if own_tokens else following
        return steps

    def _layer(
        self,
        embedded: torch.Tensor,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        keys: list[torch.Tensor],
        values: list[torch.Tensor],
    ) -> torch.Tensor:
        """One application of the draft layer; its keys and values [B, Hkv, R, D] are added to the lists."""
        layer = self.midlayer
        both = torch.cat((layer.input_layernorm(embedded), layer.hidden_norm(hidden)), -1)
        q = self.rotation(self._heads(layer.self_attn.q_proj(both)), positions)
        keys.append(self.rotation(self._heads(layer.self_attn.k_proj(both)), positions))
        values.append(self._heads(layer.self_attn.v_proj(both)))
        hidden = hidden + layer.self_attn.o_proj(self._attend(q, keys, values))
        mixed: torch.Tensor = layer.mlp(layer.post_attention_layernorm(hidden))
        return hidden + mixed

    def _attend(self, q: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor]) -> torch.Tensor:
        batch, heads, rows, dim = q.shape
        grouped = q.view(batch, self.kv_heads, heads // self.kv_heads, rows, dim)
        first = torch.matmul(grouped, keys[0].unsqueeze(2).transpose(3, 4)).float()
        future = torch.ones(rows, rows, dtype=torch.bool, device=q.device).triu(1)
        logits = [first.masked_fill(future, float("-inf"))]
        logits += [(grouped * key.unsqueeze(2)).float().sum(-1, keepdim=True) for key in keys[1:]]
        weights = (torch.cat(logits, -1) * dim**-0.5).softmax(-1).to(values[0].dtype)
        attended = torch.matmul(weights[..., :rows], values[0].unsqueeze(2))
        for step, value in enumerate(values[1:]):
            attended = attended + weights[..., rows + step, None] * value.unsqueeze(2)
        return attended.reshape(batch, heads, rows, dim).transpose(1, 2).flatten(2)

    def _heads(self, flat: torch.Tensor) -> torch.Tensor:
        return flat.view(*flat.shape[:2], -1, self.head_dim).transpose(1, 2)
