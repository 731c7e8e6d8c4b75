"""Trains the draft head on library text and on the target's own continuations of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from eagle3.m3.config import TargetConfig
from eagle3.m3.training.continuations import continued, repetition
from eagle3.m3.training.fitting import Budget, Fitter, Reporter, autocast
from eagle3.m3.training.head_model import HeadModel
from eagle3.m3.training.model import TargetModel
from eagle3.m3.training.text import windows


@dataclass(frozen=True)
class HeadRecipe:
    """How a head is trained.

    Args:
        steps, seconds: budget, generation of continuations not counted.
        batch: sequences per step.
        prompt: tokens of a continued prompt.
        new_tokens: tokens that the target adds to each; prompt and these are a sequence.
        continuations: prompts that the target continues.
        own_share: share of the sequences of a step that are continuations; the rest is library text.
        length: steps of training-time test.
        step_weight: what each further step counts less by.
        choice_weight: share of the loss that asks for the target's choice; the rest asks for its distribution.
        rate: highest learning rate.
        intermediate_size: of the draft layer.
        draft_vocab: draft vocabulary size.
        seed: of weights and batches.
    """

    steps: int = 6000
    seconds: float = 150.0
    batch: int = 64
    prompt: int = 192
    new_tokens: int = 320
    continuations: int = 12288
    own_share: float = 0.75
    length: int = 5
    step_weight: float = 0.9
    choice_weight: float = 0.5
    rate: float = 2e-3
    intermediate_size: int = 896
    draft_vocab: int = 128
    seed: int = 0

    @staticmethod
    def tiny(steps: int = 40, seconds: float = 20.0, seed: int = 0) -> HeadRecipe:
        """A recipe of seconds on a CPU, for `TargetConfig.tiny`."""
        return HeadRecipe(
            steps=steps,
            seconds=seconds,
            batch=8,
            prompt=24,
            new_tokens=24,
            continuations=32,
            rate=1e-2,
            intermediate_size=48,
            seed=seed,
        )


def draft_vocabulary(stream: torch.Tensor, size: int, vocab_size: int) -> torch.Tensor:
    """The ``size`` most frequent tokens of a stream, ascending, int64 [Vd], host; the lower of equally frequent ones."""
    counts = torch.bincount(stream.long(), minlength=vocab_size)
    return counts.argsort(descending=True, stable=True)[:size].sort().values


def new_head(
    config: TargetConfig, target: Mapping[str, torch.Tensor], used: torch.Tensor, recipe: HeadRecipe
) -> HeadModel:
    """An untrained head for a target; it starts from the target's own rows of the output projection.

    Args:
        config: of the target.
        target: its weights.
        used: draft vocabulary, [Vd] int64.
        recipe: sizes and seed.
    """
    head = HeadModel(
        target["embed_tokens.weight"],
        used.to(target["embed_tokens.weight"].device),
        captured_size=config.captured_size,
        q_heads=config.q_heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        intermediate_size=recipe.intermediate_size,
        eps=config.rms_norm_eps,
        theta=config.rope_theta,
        max_seq_len=config.max_seq_len,
        seed=recipe.seed,
    ).to(target["embed_tokens.weight"].device)
    with torch.no_grad():
        head.lm_head.weight.copy_(target["lm_head.weight"][head.used])
        head.norm.weight.copy_(target["norm.weight"])
    return head


def unrolled_loss(
    steps: list[torch.Tensor], target_logits: torch.Tensor, used: torch.Tensor, recipe: HeadRecipe
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of an unrolled head, a scalar, and the share of rows at which each step agrees with the target, [L].

    Rows at which the target's choice is outside the draft vocabulary count for nothing in the loss, and as
    disagreement in the share.

    Args:
        steps: draft logits [B, R, Vd] of each step.
        target_logits: [B, S, V].
        used: [Vd] int64.
        recipe: weights.
    """
    total = target_logits.new_zeros((), dtype=torch.float32)
    agreement, weights = [], 0.0
    for step, logits in enumerate(steps):
        wanted = target_logits[:, 1 + step : 1 + step + logits.shape[1]].float()
        choice = wanted.argmax(-1)
        restricted = wanted[..., used]
        known = used[restricted.argmax(-1)] == choice
        shares = logits.float().log_softmax(-1)
        by_distribution = -(restricted.softmax(-1) * shares).sum(-1)
        by_choice = -shares.gather(-1, restricted.argmax(-1, keepdim=True)).squeeze(-1)
        loss = (1 - recipe.choice_weight) * by_distribution + recipe.choice_weight * by_choice
        weight = recipe.step_weight**step
        total = total + weight * (loss * known).sum() / known.sum().clamp(min=1)
        weights += weight
        agreement.append((used[logits.argmax(-1)] == choice).float().mean())
    return total / weights, torch.stack(agreement)


def train_head(
    target: TargetModel,
    stream: torch.Tensor,
    recipe: HeadRecipe,
    say: Callable[[str], None],
    every: float = 10.0,
) -> tuple[HeadModel, dict[str, Any]]:
    """A trained head, and what the log keeps of its training.

    Args:
        target: trained, selecting; not changed.
        stream: [n] int16, host: training tokens.
        recipe: budget and the rest.
        say: takes progress lines.
        every: seconds between them.
    """
    device = target.lm_head.weight.device
    draw = torch.Generator().manual_seed(recipe.seed)
    span = recipe.prompt + recipe.new_tokens
    say(f"head  the target continues {recipe.continuations} prompts by {recipe.new_tokens} tokens")
    own = continued(target, windows(stream, recipe.prompt, recipe.continuations, draw), recipe.new_tokens)
    used = draft_vocabulary(stream, recipe.draft_vocab, target.config.vocab_size)
    head = new_head(target.config, target.state_dict(), used, recipe)
    budget = Budget(recipe.steps, recipe.seconds)
    fitter, reporter = Fitter(head, recipe.rate, budget), Reporter("head", say, every)
    stream = stream.to(device)
    count = round(recipe.batch * recipe.own_share)
    while budget.advance():
        picked = torch.randint(0, own.shape[0], (count,), generator=draw)
        tokens = torch.cat((own[picked.to(device)], windows(stream, span, recipe.batch - count, draw)))
        with autocast(device):
            with torch.no_grad():
                logits, captured = target(tokens)
            loss, agreement = unrolled_loss(head.unroll(captured, tokens, recipe.length), logits, head.used, recipe)
        fitter.step(loss)
        if reporter.due(budget):
            shares = {f"agrees_{step + 1}": share for step, share in enumerate(agreement.tolist())}
            reporter.report(budget, loss=loss.item(), **shares, rate=fitter.rate)
    head.eval()
    return head, {
        **budget.summary(),
        "repetition": round(repetition(own[:256, recipe.prompt :].cpu()), 4),
        "curve": reporter.curve,
    }
