"""How good the pair is on held-out modules: bits per byte of the target, acceptance of the head's drafts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from eagle3.m3.training.continuations import continued, repetition
from eagle3.m3.training.fitting import autocast
from eagle3.m3.training.head_model import HeadModel
from eagle3.m3.training.model import TargetModel
from eagle3.m3.training.text import tiled


@dataclass(frozen=True)
class Acceptance:
    """What drafting with a fixed draft length would accept.

    Args:
        draft_len: L.
        verify_steps: over all prompts.
        tokens: that they gave, each step's own token included.
        by_position: share of the steps that accepted the first draft, the first two, and so on.
    """

    draft_len: int
    verify_steps: int
    tokens: int
    by_position: tuple[float, ...]

    @property
    def length(self) -> float:
        """AL, tokens per verify step, 1 to 1 + L."""
        return self.tokens / max(self.verify_steps, 1)

    @property
    def rate(self) -> float:
        """AR, accepted drafts per draft."""
        return (self.length - 1) / self.draft_len


@torch.no_grad()
def bits_per_byte(model: TargetModel, stream: torch.Tensor, length: int, most: int, at_once: int = 32) -> float:
    """Mean bits per token of windows of a stream, each begun without context.

    Args:
        model: selecting.
        stream: [n] int16, host.
        length: tokens that are predicted in a window.
        most: windows.
        at_once: windows in memory at one time.
    """
    device = model.lm_head.weight.device
    total = count = 0.0
    for tokens in tiled(stream, length + 1, most).split(at_once):
        tokens = tokens.to(device)
        with autocast(device):
            logits, _ = model(tokens[:, :-1])
        total += F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum").item()
        count += tokens[:, 1:].numel()
    return total / count / math.log(2)


@torch.no_grad()
def accepted_from(
    target: TargetModel, head: HeadModel, tokens: torch.Tensor, draft_len: int, at_once: int = 32
) -> torch.Tensor:
    """How many drafts of a chain that begins at each row are the tokens that follow, int64 [n, R], 0..L, host.

    The chain at row t knows the target's features up to position t and the token at t + 1; its drafts stand for the
    tokens from t + 2 on. R = S - 1 - ``draft_len``.

    Args:
        tokens: [n, S] int64: greedy text of the target.
        draft_len: L.
    """
    device = target.lm_head.weight.device
    counts = []
    for chunk in tokens.split(at_once):
        chunk = chunk.to(device)
        with autocast(device):
            _, captured = target(chunk)
            steps = head.unroll(captured, chunk, draft_len, own_tokens=True)
        drafts = torch.stack([head.used[logits.argmax(-1)] for logits in steps], 2)
        truth = chunk[:, 2:].unfold(1, draft_len, 1)
        counts.append((drafts == truth[:, : drafts.shape[1]]).long().cumprod(2).sum(2).cpu())
    return torch.cat(counts)


def walk(accepted: torch.Tensor, first: int, draft_len: int) -> Acceptance:
    """What the loop would do on these sequences: each verify step begins where the one before it ended.

    Args:
        accepted: [n, R] int64, host, of chains at least ``draft_len`` long.
        first: row of the first draft: the last one of the prompt.
        draft_len: L.
    """
    histogram = [0] * (draft_len + 1)
    for row in accepted.tolist():
        place = first
        while place < len(row):
            drafts = min(row[place], draft_len)
            histogram[drafts] += 1
            place += 1 + drafts
    steps = sum(histogram)
    reached = [sum(histogram[position:]) / max(steps, 1) for position in range(1, draft_len + 1)]
    tokens = sum((1 + drafts) * count for drafts, count in enumerate(histogram))
    return Acceptance(draft_len, steps, tokens, tuple(reached))


def evaluate_target(model: TargetModel, streams: dict[str, torch.Tensor], length: int, most: int) -> dict[str, float]:
    """Bits per byte on each stream, by name."""
    return {name: round(bits_per_byte(model, stream, length, most), 4) for name, stream in streams.items()}


def evaluate_head(
    target: TargetModel,
    head: HeadModel,
    stream: torch.Tensor,
    *,
    prompts: int,
    prompt: int,
    new_tokens: int,
    most_drafts: int = 5,
) -> dict[str, Any]:
    """AR and AL for draft lengths 1 to ``most_drafts`` on greedy continuations of held-out prompts.

    Args:
        stream: [n] int16, host: held-out tokens.
        prompts: how many.
        prompt: tokens of each.
        new_tokens: tokens that the target adds to each.
    """
    tokens = continued(target, tiled(stream, prompt, prompts), new_tokens).cpu()
    accepted = accepted_from(target, head, tokens, most_drafts)
    rows = []
    for draft_len in range(1, most_drafts + 1):
        whole, early = (walk(accepted[:, :end], prompt - 1, draft_len) for end in (None, prompt - 1 + new_tokens // 4))
        rows.append(
            {
                "draft_len": draft_len,
                "acceptance_rate": round(whole.rate, 4),
                "acceptance_length": round(whole.length, 4),
                "acceptance_length_of_first_quarter": round(early.length, 4),
                "by_position": [round(share, 4) for share in whole.by_position],
                "verify_steps": whole.verify_steps,
            }
        )
    return {
        "prompts": tokens.shape[0],
        "prompt_tokens": prompt,
        "new_tokens": new_tokens,
        "repetition": round(repetition(tokens[:, prompt:]), 4),
        "acceptance": rows,
    }
