"""Greedy continuations by the trained target: what a draft head meets when it serves, so what it learns from."""

from __future__ import annotations

import torch

from eagle3.m3.training.fitting import autocast
from eagle3.m3.training.model import Past, TargetModel


@torch.no_grad()
def continued(model: TargetModel, prompts: torch.Tensor, new_tokens: int, at_once: int = 4096) -> torch.Tensor:
    """Prompts int64 [n, S] with ``new_tokens`` more tokens each, every one the target's most likely, on its device.

    Args:
        model: selecting.
        prompts: [n, S] int64, any device.
        new_tokens: how many.
        at_once: sequences in memory at one time.
    """
    device = model.lm_head.weight.device
    done = []
    for chunk in prompts.split(at_once):
        tokens = chunk.to(device)
        past = Past(chunk.shape[1] + new_tokens)
        following, grown = tokens, [tokens]
        # One context for all steps: it keeps the weights that it has rounded.
        with autocast(device):
            for _ in range(new_tokens):
                logits, _ = model(following, past)
                following = logits[:, -1:].argmax(-1)
                grown.append(following)
        done.append(torch.cat(grown, 1))
    return torch.cat(done)


def repetition(tokens: torch.Tensor, size: int = 16) -> float:
    """Share of the runs of ``size`` tokens that stood in the same row before, 0 to 1; int64 [n, S], host."""
    repeated = total = 0
    for row in tokens.tolist():
        seen: set[tuple[int, ...]] = set()
        for first in range(len(row) - size + 1):
            run = tuple(row[first : first + size])
            repeated += run in seen
            total += 1
            seen.add(run)
    return repeated / max(total, 1)
