"""What both trainers share: the budget, the learning rate, the optimiser and the lines that say how far it is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

_WARM_UP, _FLOOR = 0.02, 0.03
_MOST_NORM = 1.0


class Budget:
    """How long to train: until the steps or the seconds are used up, whichever comes first.

    The learning rate follows the progress, so that it is low at the end in either case. Only a run that ends by steps
    can be repeated; the log says by which one it ended.

    Args:
        steps: at most.
        seconds: at most, from the first step on.
    """

    def __init__(self, steps: int, seconds: float) -> None:
        self.steps, self.seconds = steps, seconds
        self.step = 0
        self.began: float | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since the first step."""
        return 0.0 if self.began is None else time.monotonic() - self.began

    @property
    def progress(self) -> float:
        """What is used up of the tighter limit, 0 to 1."""
        return min(max(self.step / self.steps, self.elapsed / self.seconds), 1.0)

    def advance(self) -> bool:
        """Whether there is another step; counts it."""
        if self.began is None:
            self.began = time.monotonic()
        if self.progress >= 1.0:
            return False
        self.step += 1
        return True

    def summary(self) -> dict[str, Any]:
        """For the log."""
        by = "steps" if self.step >= self.steps else "seconds"
        return {"steps": self.step, "seconds": round(self.elapsed, 1), "ended_by": by}


class Fitter:
    """AdamW with a warm-up, a cosine and clipped gradients; matrices decay, norms do not.

    Args:
        module: whose parameters are fitted.
        peak: highest learning rate.
        budget: of the run.
        decay: weight decay of matrices.
    """

    def __init__(self, module: nn.Module, peak: float, budget: Budget, decay: float = 0.1) -> None:
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        matrices = [parameter for parameter in self.parameters if parameter.dim() > 1]
        vectors = [parameter for parameter in self.parameters if parameter.dim() <= 1]
        groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
        fused = self.parameters[0].device.type == "cuda"
        self.optimiser = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95), fused=fused)
        self.peak, self.budget = peak, budget

    @property
    def rate(self) -> float:
        """The learning rate at this point of the budget."""
        progress = self.budget.progress
        cosine = _FLOOR + (1 - _FLOOR) * (1 + math.cos(math.pi * progress)) / 2
        return self.peak * min(progress / _WARM_UP + 1e-3, 1.0) * cosine

    def step(self, loss: torch.Tensor) -> None:
        """The parameters have moved against the gradient of ``loss``."""
        rate = self.rate
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, _MOST_NORM)
        self.optimiser.step()


class Reporter:
    """Progress lines at most every few seconds, and a curve for the log.

    Args:
        stage: what is being trained.
        say: where lines go.
        every: seconds between lines.
    """

    def __init__(self, stage: str, say: Callable[[str], None], every: float) -> None:
        self.stage, self.say, self.every = stage, say, every
        self.last = -math.inf
        self.curve: list[dict[str, float]] = []

    def due(self, budget: Budget) -> bool:
        """Whether a line is due: after the first step, then by time, and at the end."""
        return budget.elapsed - self.last >= self.every or budget.progress >= 1.0

    def report(self, budget: Budget, **numbers: float) -> None:
        """One line with these numbers."""
        self.last = budget.elapsed
        self.curve.append({"step": budget.step, "seconds": round(budget.elapsed, 1), **numbers})
        words = "  ".join(f"{name} {value:.4g}" for name, value in numbers.items())
        self.say(f"{self.stage}  {budget.progress:4.0%}  step {budget.step}  {budget.elapsed:.0f} s  {words}")


def autocast(device: torch.device) -> AbstractContextManager[Any]:
    """bf16 products on a GPU; plain fp32 on a CPU, where bf16 is slow."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()
