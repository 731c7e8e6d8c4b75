"""The target's forward over the tokens of one step; the bits of a row depend on that row and its cache only."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from eagle3.m3.attention import Attention
from eagle3.m3.config import TargetConfig
from eagle3.m3.weights import check_weights
from eagle3.ops import Operators, rope_table
from graphcheck.contract import capture_safe, refuse_while_capturing


class Target:
    """A target of M3's shape: pre-norm layers with normed heads, RoPE and a gated feed-forward.

    Everything that mixes rows is attention, and that goes through msa; the rest are row-invariant operators. So the
    bits of a token's logits do not depend on how many tokens or requests share the step.

    Args:
        config: sizes.
        weights: every tensor that `eagle3.m3.weights.shapes` names, of one dtype, device.
        operators: row-invariant operators.

    Raises:
        CaptureRefused: the current stream is capturing.
        WeightsMismatch: tensors are missing, unknown or of another shape.
    """

    def __init__(self, config: TargetConfig, weights: Mapping[str, torch.Tensor], operators: Operators) -> None:
        refuse_while_capturing("target")
        check_weights(config, weights)
        self.config = config
        self.weights = dict(weights)
        self.operators = operators
        self.table = rope_table(config.max_seq_len, config.rotary_dim, config.rope_theta, device=self.embed.device)

    @property
    def embed(self) -> torch.Tensor:
        """Token embeddings [V, H]."""
        return self.weights["embed_tokens.weight"]

    @property
    def lm_head(self) -> torch.Tensor:
        """Output projection [V, H]."""
        return self.weights["lm_head.weight"]

    @capture_safe(dynamic=("tokens", "positions"), static=("self", "attention"))
    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, attention: Attention
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states [T, H] of the step, and what the draft head sees of it [T, 3 * H]; device only.

        The hidden states are the residual stream behind the last layer, before the final norm. What the head sees is
        the residual stream at the inputs of ``config.capture_layers``.

        Args:
            tokens: [T] int32 or int64, device. Outside the vocabulary they count as its first or last token: a padding
                row may hold anything.
            positions: [T] int32 or int64, device; of padding rows anything.
            attention: bound to the step and to the caches.

        Read live: tokens and positions. Frozen at capture: T, and what the attention freezes.
        """
        hidden = self.embed.index_select(0, tokens.clamp(0, self.config.vocab_size - 1))
        captured = []
        for layer in range(self.config.layers):
            if layer in self.config.capture_layers:
                captured.append(hidden)
            hidden = hidden + self._attend(layer, hidden, positions, attention)
            hidden = hidden + self._feed_forward(layer, hidden)
        return hidden, torch.cat(captured, 1)

    @capture_safe(dynamic=("hidden",), static=("self",))
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits fp32 [R, V] of hidden states [R, H] that `forward` returned; device only."""
        return self.operators.linear(self._norm("norm.weight", hidden), self.lm_head, dtype=torch.float32)

    def _attend(self, layer: int, hidden: torch.Tensor, positions: torch.Tensor, attention: Attention) -> torch.Tensor:
        prefix = f"layers.{layer}"
        normed = self._norm(f"{prefix}.input_layernorm.weight", hidden)
        q = self._heads(f"{prefix}.self_attn.q", normed, positions)
        k = self._heads(f"{prefix}.self_attn.k", normed, positions)
        v = self._linear(f"{prefix}.self_attn.v_proj.weight", normed).view(k.shape)
        if self.config.is_sparse(layer):
            index_q = self._heads(f"{prefix}.self_attn.index_q", normed, positions)
            index_k = self._heads(f"{prefix}.self_attn.index_k", normed, positions)
            attended = attention.sparse(layer, q, k, v, index_q, index_k)
        else:
            attended = attention.dense(layer, q, k, v)
        return self._linear(f"{prefix}.self_attn.o_proj.weight", attended.view(hidden.shape[0], -1))

    def _heads(self, name: str, normed: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Normed and rotated heads [T, heads, D] of one projection."""
        dim = self.config.head_dim
        flat = self._linear(f"{name}_proj.weight", normed)
        heads = self._norm(f"{name}_norm.weight", flat.view(-1, dim)).view(normed.shape[0], -1, dim)
        return self.operators.rope(heads, positions, self.table)

    def _feed_forward(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        prefix = f"layers.{layer}"
        normed = self._norm(f"{prefix}.post_attention_layernorm.weight", hidden)
        gate = self._linear(f"{prefix}.mlp.gate_proj.weight", normed)
        up = self._linear(f"{prefix}.mlp.up_proj.weight", normed)
        return self._linear(f"{prefix}.mlp.down_proj.weight", self.operators.swiglu(gate, up))

    def _linear(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        return self.operators.linear(rows, self.weights[name])

    def _norm(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        return self.operators.rms_norm(rows, self.weights[name], self.config.rms_norm_eps)
