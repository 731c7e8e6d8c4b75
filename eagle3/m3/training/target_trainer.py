"""Trains the target: next-byte loss throughout; index branches from the start, selection once they are warm."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from eagle3.m3.config import TargetConfig
from eagle3.m3.training.fitting import Budget, Fitter, Reporter, autocast
from eagle3.m3.training.model import Lessons, TargetModel
from eagle3.m3.training.text import windows


@dataclass(frozen=True)
class TargetRecipe:
    """How a target is trained.

    Args:
        steps, seconds: budget.
        batch: sequences per step.
        length: tokens per sequence.
        rate: highest learning rate.
        dense_until: progress at which sparse layers begin to select.
        taught: one sequence in so many teaches the index branches.
        dropout: share of each layer's contributions that is dropped.
        seed: of weights, batches and what is dropped.
    """

    steps: int = 9000
    seconds: float = 320.0
    batch: int = 32
    length: int = 1024
    rate: float = 2e-3
    dense_until: float = 0.25
    taught: int = 8
    dropout: float = 0.05
    seed: int = 0

    @staticmethod
    def tiny(steps: int = 60, seconds: float = 20.0, seed: int = 0) -> TargetRecipe:
        """A recipe of seconds on a CPU, for `TargetConfig.tiny`."""
        return TargetRecipe(
            steps=steps, seconds=seconds, batch=8, length=64, rate=1e-2, taught=2, dropout=0.0, seed=seed
        )


def train_target(
    config: TargetConfig,
    stream: torch.Tensor,
    recipe: TargetRecipe,
    device: torch.device,
    say: Callable[[str], None],
    every: float = 10.0,
) -> tuple[TargetModel, dict[str, Any]]:
    """A trained target, selecting, and what the log keeps of its training.

    Args:
        config: sizes.
        stream: [n] int16, host: training tokens.
        recipe: budget and the rest.
        device: where to train.
        say: takes progress lines.
        every: seconds between them.
    """
    torch.manual_seed(recipe.seed)
    model = TargetModel(config, recipe.seed).to(device)
    model.dropout = recipe.dropout
    budget = Budget(recipe.steps, recipe.seconds)
    fitter, reporter = Fitter(model, recipe.rate, budget), Reporter("target", say, every)
    draw = torch.Generator().manual_seed(recipe.seed)
    stream = stream.to(device)
    selecting_from = None
    while budget.advance():
        if not model.selecting and budget.progress >= recipe.dense_until:
            model.selecting, selecting_from = True, budget.step
            say(f"target  sparse layers select from step {budget.step} on")
        tokens = windows(stream, recipe.length + 1, recipe.batch, draw)
        lessons = Lessons(max(recipe.batch // recipe.taught, 1))
        with autocast(device):
            logits, _ = model(tokens[:, :-1], lessons=lessons)
            loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
            taught = torch.stack(lessons.losses).sum() if lessons.losses else loss.new_zeros(())
        # The branches share no parameter with the trunk, so one backward pass serves both.
        fitter.step(loss + taught)
        if reporter.due(budget):
            covered = torch.stack(lessons.covered).mean().item() if lessons.covered else 1.0
            reporter.report(
                budget,
                bits_per_byte=loss.item() / math.log(2),
                index_loss=taught.item() / max(config.sparse_layers, 1),
                covered=covered,
                rate=fitter.rate,
            )
    model.selecting = True
    model.eval()
    return model, {**budget.summary(), "selecting_from_step": selecting_from, "curve": reporter.curve}
