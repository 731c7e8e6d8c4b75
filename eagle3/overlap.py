"""Overlap: a step is launched before the host has read what the previous one kept, and corrected on the device."""

from __future__ import annotations

import torch

from eagle3.errors import ShapeMismatch
from eagle3.lengths import DraftLengths
from eagle3.mirror import Staging
from graphcheck.contract import capture_safe, refuse_while_capturing


class OverlapOffsets:
    """Lengths staged as if everything were kept, and what the device adds to them.

    Two baselines: lengths are staged with all of the previous step kept, and their offset ``kept - assumed`` is never
    positive; positions are staged without the previous step, and their offset ``kept`` is never negative. Who moves one
    baseline must move the other. Neither staged tensor is changed by a correction, so two of them are as good as one.

    Args:
        batch: B.
        draft_len: L of this step.
        device: where the tensors live.

    Attributes:
        staged_lens: [B] int32, device, tokens: lengths of the verify step if all was kept; 0 in padding rows. Input.
        staged_positions: [B] int32, device: position of each row's first token if nothing was kept. Input.
        previous: [B] int32, device: row in the previous batch, or -1. Input.
        assumed: [B] int32, device, tokens: staged as kept; 0 where there was no previous step. Input.
        len_offsets, position_offsets: [B] int32, device: what a correction adds.

    Raises:
        CaptureRefused: the current stream is capturing.
    """

    def __init__(self, batch: int, draft_len: int, device: torch.device | str) -> None:
        refuse_while_capturing("overlap offsets")
        self.batch = batch
        self.draft_len = draft_len

        def new(value: int = 0) -> torch.Tensor:
            return torch.full((batch,), value, dtype=torch.int32, device=device)

        self.staged_lens, self.staged_positions, self.assumed = new(), new(), new()
        self.previous = new(-1)
        self.len_offsets, self.position_offsets = new(), new()

    def stage(self, staging: Staging) -> None:
        """The staged tensors hold this batch, and padding behind it; offsets are 0. In place, from the host.

        Raises:
            ShapeMismatch: more requests than rows, or one without a token.
        """
        real = len(staging.committed)
        if real > self.batch or any(tokens < 1 for tokens in staging.committed):
            raise ShapeMismatch(
                f"committed {list(staging.committed)}; expected at most {self.batch} lengths, each at least 1: "
                "a row of length 0 is padding"
            )
        ahead = [done + assumed for done, assumed in zip(staging.committed, staging.assumed, strict=True)]
        columns = (
            (self.staged_lens, [tokens + 1 + self.draft_len for tokens in ahead], 0),
            (self.staged_positions, staging.committed, 0),
            (self.previous, staging.previous, -1),
            (self.assumed, staging.assumed, 0),
        )
        for tensor, values, neutral in columns:
            host = torch.full((self.batch,), neutral, dtype=torch.int32)
            host[:real] = torch.tensor(list(values), dtype=torch.int32)
            tensor.copy_(host)
        self.len_offsets.zero_()
        self.position_offsets.zero_()

    def gather(self, count: torch.Tensor) -> None:
        """The offsets follow from what the previous step kept; device only, idempotent.

        Call it before the coming acceptance writes its own counts: then they may stand in the same tensor.

        Args:
            count: [B'] int32, device: tokens that each row of the previous batch kept.
        """
        gather_offsets(count, self.previous, self.assumed, self.len_offsets, self.position_offsets)

    def correct(self, lengths: DraftLengths) -> None:
        """``past``, ``kv_lens`` and ``positions`` are those of staging with the true past; device only, idempotent.

        Whatever is derived from them (ladders, slots, page counts) must be planned anew behind it.
        """
        correct_staged(
            self.staged_lens,
            self.staged_positions,
            self.len_offsets,
            self.position_offsets,
            lengths.steps,
            lengths.real,
            lengths.past,
            lengths.kv_lens,
            lengths.positions,
        )

    def advanced(self) -> dict[str, torch.Tensor]:
        """Every tensor that a captured step changes, by name: what a warm-up saves and puts back."""
        return {"len_offsets": self.len_offsets, "position_offsets": self.position_offsets}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor, by name; their addresses never change."""
        return self.advanced() | {
            "staged_lens": self.staged_lens,
            "staged_positions": self.staged_positions,
            "previous": self.previous,
            "assumed": self.assumed,
        }


@capture_safe(dynamic=("count", "previous", "assumed"), out=("len_offsets", "position_offsets"))
def gather_offsets(
    count: torch.Tensor,
    previous: torch.Tensor,
    assumed: torch.Tensor,
    len_offsets: torch.Tensor,
    position_offsets: torch.Tensor,
) -> None:
    """Offsets are ``kept - assumed`` and ``kept`` where there was a previous step, 0 elsewhere; device only.

    Args:
        count: [B'] int32, device: tokens kept by the rows of the previous batch.
        previous: [B] int32, device: row in it, or -1.
        assumed: [B] int32, device, tokens.
        len_offsets, position_offsets: [B] int32, device; written.
    """
    kept = count.index_select(0, previous.clamp(0, count.shape[0] - 1))
    # More than was granted cannot have been kept, and nothing may grow beyond what pages are held for.
    torch.minimum(kept, assumed, out=position_offsets)
    position_offsets.masked_fill_(previous < 0, 0)
    torch.sub(position_offsets, assumed, out=len_offsets)
    len_offsets.masked_fill_(previous < 0, 0)


@capture_safe(
    dynamic=("staged_lens", "staged_positions", "len_offsets", "position_offsets"),
    static=("steps",),
    out=("real", "past", "kv_lens", "positions"),
)
def correct_staged(
    staged_lens: torch.Tensor,
    staged_positions: torch.Tensor,
    len_offsets: torch.Tensor,
    position_offsets: torch.Tensor,
    steps: torch.Tensor,
    real: torch.Tensor,
    past: torch.Tensor,
    kv_lens: torch.Tensor,
    positions: torch.Tensor,
) -> None:
    """Lengths and positions of a verify step are the staged ones and their offsets; device only, nothing is allocated.

    Args:
        staged_lens, staged_positions, len_offsets, position_offsets: [B] int32, device.
        steps: [Q] int32, device: 0..L.
        real: [B] int32, device; written: 1, or 0 in padding rows.
        past, kv_lens: [B] int32, device; written.
        positions: [B * Q] int32, device; written.
    """
    qo_len = steps.shape[0]
    torch.sign(staged_lens, out=real)
    torch.add(staged_lens, len_offsets, out=kv_lens)
    torch.sub(kv_lens, real, alpha=qo_len, out=past)
    ladder = positions.view(-1, qo_len)
    torch.mul(real.unsqueeze(1), steps, out=ladder)
    ladder.add_(staged_positions.unsqueeze(1)).add_(position_offsets.unsqueeze(1))
