"""The draft loop: a chain of L drafts for every request, in fixed shapes, over a cache of the head's own."""

from __future__ import annotations

from functools import partial

import torch

from eagle3.accept import PADDING_TOKEN
from eagle3.errors import ShapeMismatch
from eagle3.head import DraftHead
from eagle3.lengths import DraftLengths
from graphcheck.contract import capture_safe, refuse_while_capturing
from msa import DecodeDriver, Geometry, PagedCache


class DraftLoop:
    """Drafts behind a verify step, for a fixed number of requests; captured with that step or by itself.

    Draft step 0 takes all 1 + L tokens of each request, whatever was kept of them, because shapes must not depend on
    that. Only the row of the last kept token is read; the rows behind it write keys that the next step overwrites. Steps
    1..L-1 take one token of each request. Lengths come from ``lengths`` alone, so that no step can add twice.

    Args:
        head: the draft head.
        geometry: of the draft cache, in the head's own head counts.
        cache: the head's keys and values.
        lengths: of the verify step; their ``kv_lens`` become the lengths of the loop's drivers.
        page_table: [B, W] int32, device, of the draft cache; allocated here if left out.
        kernels: of the attention, as in `msa.DecodeDriver`.

    Attributes:
        drafts: [B, L] int64, device: the drafts, in the target's ids; `PADDING_TOKEN` in padding rows.
        page_table: as above.

    Raises:
        CaptureRefused: the current stream is capturing.
        ShapeMismatch: the geometry is not that of the head.
    """

    def __init__(
        self,
        head: DraftHead,
        geometry: Geometry,
        cache: PagedCache,
        lengths: DraftLengths,
        *,
        page_table: torch.Tensor | None = None,
        kernels: str = "portable",
    ) -> None:
        refuse_while_capturing("draft loop")
        config = head.config
        wanted = (config.num_attention_heads, config.num_key_value_heads, config.head_dim)
        if (geometry.q_heads, geometry.kv_heads, geometry.head_dim) != wanted:
            raise ShapeMismatch(
                f"draft geometry of {geometry.q_heads} heads over {geometry.kv_heads} of {geometry.head_dim}; the head "
                f"has {wanted[0]} over {wanted[1]} of {wanted[2]}"
            )
        self.head = head
        self.geometry = geometry
        self.cache = cache
        self.lengths = lengths
        device = lengths.kv_lens.device
        new_driver = partial(DecodeDriver, geometry, lengths.batch, device=device, kernels=kernels)
        self.ladder = new_driver(qo_len=lengths.qo_len, kv_lens=lengths.kv_lens, page_table=page_table)
        self.page_table = self.ladder.page_table
        self.single = new_driver(qo_len=1, kv_lens=lengths.kv_lens, page_table=self.page_table)
        self.drafts = torch.full((lengths.batch, lengths.draft_len), PADDING_TOKEN, dtype=torch.int64, device=device)
        self.first_rows = torch.arange(lengths.batch, device=device) * lengths.qo_len

    def prepare(self, tokens: torch.Tensor, captured: torch.Tensor) -> None:
        """Every kernel that `run` launches with such inputs is compiled and loaded; before the first capture.

        The loop runs once on lengths of zero, which are put back: the drafts are overwritten, of the cache only the dummy
        page is. Portable operators need no preparation.

        Args:
            tokens, captured: as in `run`; only their shapes and dtypes count.

        Raises:
            CaptureRefused: the current stream is capturing.
        """
        refuse_while_capturing("draft kernels")
        if self.ladder.triton is None and self.head.operators.kernels != "triton":
            return
        with self.lengths.at_rest():
            self.run(torch.zeros_like(tokens), torch.zeros_like(captured))

    @capture_safe(dynamic=("tokens", "captured"), static=("self",))
    def run(self, tokens: torch.Tensor, captured: torch.Tensor) -> torch.Tensor:
        """The drafts [B, L] behind the kept tokens, in ``drafts``; device only. `DraftLengths.after_accept` has run.

        With L = 0 nothing is drafted, but the kept tokens enter the cache, so that a later step may draft again.

        Args:
            tokens: [B, 1 + L] int64, device: the step's tokens, of which the first ``lengths.count`` are kept.
            captured: [T, C * Ht], device: the target's captured hidden states of the verify step.
        """
        lengths = self.lengths
        self.ladder.plan()
        hidden = self.head.layer(
            tokens.reshape(-1),
            self.head.fuse(captured),
            lengths.positions,
            partial(self.ladder.dense_layer, cache=self.cache),
        )
        last_kept = self.first_rows + (lengths.count - 1).clamp_(min=0)
        return self.chain(hidden.index_select(0, last_kept))

    @capture_safe(dynamic=("hidden",), static=("self",))
    def chain(self, hidden: torch.Tensor) -> torch.Tensor:
        """The drafts [B, L] that follow from the last kept row's hidden state [B, H], in ``drafts``; device only.

        Behind a prompt, `DraftLengths.stage` has taken its length, and the head has read it elsewhere.
        """
        lengths, drafts = self.lengths, self.drafts
        padding = lengths.real.eq(0)
        for step in range(lengths.draft_len):
            if step:
                lengths.draft_advance(step - 1)
                self.single.plan()
                attend = partial(self.single.dense_layer, cache=self.cache)
                hidden = self.head.layer(drafts[:, step - 1], hidden, lengths.draft_positions, attend)
            token = self.head.to_target(self.head.logits(hidden).argmax(1))
            drafts[:, step].copy_(token.masked_fill_(padding, PADDING_TOKEN))
        return drafts

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor but weights, caches and lengths that the loop uses, by name; their addresses never change."""
        drivers = {"ladder": self.ladder, "single": self.single}
        return {
            "drafts": self.drafts,
            "draft_page_table": self.page_table,
            "first_rows": self.first_rows,
            **{
                f"{name}_{key}": tensor
                for name, driver in drivers.items()
                for key, tensor in driver.tensors().items()
                if key not in ("kv_lens", "page_table")
            },
        }
