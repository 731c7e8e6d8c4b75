"""The Eagle3 head: one decoder layer that drafts from the target's hidden states and its own.

Row t of a draft step stands for position p. It takes the hidden state *of position p* and the embedding *of the token at
p + 1*, is rotated to position p, and its logits are for the token at p + 2. `paired_tokens` makes that shift for a prompt; in a
verify step the accepted tokens are shifted already.

Source: Li et al., EAGLE-3 (arXiv 2503.01840); SafeAILab/EAGLE, eagle/model/cnets.py.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from eagle3.checkpoint import HeadWeights
from eagle3.config import HeadConfig
from eagle3.errors import ShapeMismatch
from eagle3.ops import Operators, rope_table
from graphcheck.contract import capture_safe, refuse_while_capturing

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class DraftHead:
    """Fuses captured hidden states, runs the draft layer and maps draft ids to the target's.

    It holds weights and tables only. Caches, lengths and tokens are passed in; no method touches the host.

    Args:
        config: sizes and variant.
        weights: the head's own, on the device.
        embed: [V, H] embeddings, on the device; the target's own or the head's.
        lm_head: [Vd, H], likewise.
        operators: what it computes with.
        positions: rows of the rotary table, the longest sequence that is served; the config's
            ``max_position_embeddings`` by default, which in published heads is the length they were trained at.

    Attributes:
        table: [positions, R] fp32, device: cosines and sines.
        target_ids: [Vd] int64, device: the target's id of each draft id; None if they are the same.

    Raises:
        CaptureRefused: the current stream is capturing.
        ShapeMismatch: a table does not fit the config.
    """

    def __init__(
        self,
        config: HeadConfig,
        weights: HeadWeights,
        embed: torch.Tensor,
        lm_head: torch.Tensor,
        operators: Operators,
        *,
        positions: int | None = None,
    ) -> None:
        refuse_while_capturing("draft head")
        hidden = config.hidden_size
        given = tuple(embed.shape), tuple(lm_head.shape)
        if given != ((config.vocab_size, hidden), (config.draft_vocab_size, hidden)):
            raise ShapeMismatch(
                f"embed {given[0]} and lm_head {given[1]}, expected {(config.vocab_size, hidden)} and "
                f"{(config.draft_vocab_size, hidden)}"
            )
        self.config = config
        self.weights = weights
        self.embed = embed
        self.lm_head = lm_head
        self.operators = operators
        self.table = rope_table(
            positions or config.max_position_embeddings,
            config.rotary_dim,
            config.rope_theta,
            config.rope_scaling,
            weights.fc.device,
        )
        self.target_ids: torch.Tensor | None = None
        if weights.d2t is not None:
            self.target_ids = weights.d2t + torch.arange(config.draft_vocab_size, device=weights.d2t.device)

    @capture_safe(dynamic=("captured",), static=("self",))
    def fuse(self, captured: torch.Tensor) -> torch.Tensor:
        """The target's hidden states as hidden states of the head [T, H].

        Args:
            captured: [T, C * Ht], device: the captured layers of each position, ascending.
        """
        config, weights = self.config, self.weights
        if config.fc_norm:
            states = captured.split(config.target_hidden_size, 1)
            captured = torch.cat(
                [self._norm(state, gain) for state, gain in zip(states, weights.fc_norms, strict=True)], 1
            )
        if weights.input_norm is not None:
            captured = self._norm(captured, weights.input_norm)
        return self.operators.linear(captured, weights.fc, weights.fc_bias)

    @capture_safe(dynamic=("tokens", "hidden", "positions"), static=("self", "attend"))
    def layer(
        self, tokens: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """Hidden states [T, H] for the logits of each row and for the step after it.

        They are the sum before the last norm, or behind it for a head with ``norm_output``.

        Args:
            tokens: [T] int32 or int64, device: the token at position p + 1. Outside the vocabulary they count as its
                first or last token: a padding row may hold anything.
            hidden: [T, H], device: the hidden state of position p, fused or of the step before.
            positions: [T] int32 or int64, device: p.
            attend: (q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, D]) -> [T, Hq, D]; writes the rows' keys and values where
                they belong and attends, rows of one request to each other causally. All three are contiguous.

        Read live: all tensors. Frozen at capture: T and what ``attend`` freezes.
        """
        config, weights, operators = self.config, self.weights, self.operators
        embedded = self.embed.index_select(0, tokens.clamp(0, config.vocab_size - 1)).to(hidden.dtype)
        normed = self._norm(hidden, weights.hidden_norm)
        residual = normed if config.norm_before_residual else hidden
        joined = torch.cat([self._norm(embedded, weights.input_layernorm), normed], 1)
        heads, groups, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        stacked = operators.linear(joined, weights.qkv).unflatten(1, (heads + 2 * groups, dim))
        q, k, v = stacked.split([heads, groups, groups], 1)
        q, k = operators.rope(q, positions, self.table), operators.rope(k, positions, self.table)
        attended = attend(q, k, v.contiguous())
        middle = residual + operators.linear(attended.flatten(1), weights.o_proj)
        normed = self._norm(middle, weights.post_attention_layernorm)
        gate, up = operators.linear(normed, weights.gate_up).split(config.intermediate_size, 1)
        out = middle + operators.linear(operators.swiglu(gate, up), weights.down_proj)
        if config.norm_output and weights.norm is not None:
            return self._norm(out, weights.norm)
        return out

    @capture_safe(dynamic=("hidden",), static=("self",))
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits fp32 [R, Vd] of rows that `layer` returned. ``hidden`` [R, H], device."""
        weights = self.weights
        if weights.norm is not None and not self.config.norm_output:
            hidden = self._norm(hidden, weights.norm)
        return self.operators.linear(hidden, self.lm_head, dtype=torch.float32)

    @capture_safe(dynamic=("ids",), static=("self",))
    def to_target(self, ids: torch.Tensor) -> torch.Tensor:
        """The target's ids [R] of draft ids [R], in their dtype, int32 or int64; device only."""
        if self.target_ids is None:
            return ids
        return self.target_ids.index_select(0, ids).to(ids.dtype)

    @capture_safe(dynamic=("probabilities",), static=("self",))
    def spread(self, probabilities: torch.Tensor) -> torch.Tensor:
        """Draft probabilities [R, Vd] over the target's vocabulary [R, V]: zero where the head has no token."""
        if self.target_ids is None:
            return probabilities
        full = probabilities.new_zeros(probabilities.shape[0], self.config.vocab_size)
        return full.index_copy_(1, self.target_ids, probabilities)

    def _norm(self, rows: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        return self.operators.rms_norm(rows, gain, self.config.rms_norm_eps)


@capture_safe(dynamic=("tokens", "last_rows", "sampled"))
def paired_tokens(tokens: torch.Tensor, last_rows: torch.Tensor, sampled: torch.Tensor) -> torch.Tensor:
    """The token behind each row's own, [T]: prompts shifted left by one, the sampled token at the end of each.

    Args:
        tokens: [T] int, device: prompts of B requests, back to back.
        last_rows: [B] int64, device: the row of each request's last token.
        sampled: [B] as ``tokens``, device: what the target sampled there. For a chunk that is not a prompt's last, the
            prompt's next token.
    """
    return tokens.roll(-1).index_copy_(0, last_rows, sampled)
