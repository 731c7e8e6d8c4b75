"""Warm-up that consumes work or advances state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from hypothesis.strategies import SearchStrategy

from graphcheck.cases import Case
from graphcheck.component import Buffers
from graphcheck.strategies import case, contents, lengths
from graphcheck.zoo import Entry
from graphcheck.zoo.rows import ROWS, WIDTH, WithoutReference


class PlansLazily(WithoutReference):
    """The first call plans and later calls reuse: warm-up plans, so the planner never enters the graph."""

    def allocate(self, device: torch.device) -> Buffers:
        self.offsets: torch.Tensor | None = None
        return super().allocate(device)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        if self.offsets is None:
            self.offsets = self.plan(buffers)
        buffers.out.copy_(self.masked(buffers).sum(1) + self.offsets)
        return {"out": buffers.out}

    def plan(self, buffers: Buffers) -> torch.Tensor:
        """Offsets [rows] float32 from the lengths, on the device."""
        return buffers.lens.cumsum(0).float()


class PlansEachStep(PlansLazily):
    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.masked(buffers).sum(1) + self.plan(buffers))
        return {"out": buffers.out}


class DriftsInWarmup(WithoutReference):
    """The region advances a length in place; nobody puts it back after the warm-up runs."""

    mutates = ("kv_lens",)
    restores = ("kv_lens",)

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(
            **dict(super().allocate(device).items()), kv_lens=torch.zeros(ROWS, dtype=torch.int32, device=device)
        )

    def cases(self) -> SearchStrategy[Case]:
        return case(lens=lengths(ROWS, 1, WIDTH, page=8), x=contents(("normal",)))

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        buffers.kv_lens.copy_(case.lens)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.kv_lens.add_(1)
        buffers.out.copy_(self.masked(buffers).sum(1) + buffers.kv_lens)
        return {"out": buffers.out}


class RestoresAfterWarmup(DriftsInWarmup):
    @contextmanager
    def around_warmup(self, buffers: Buffers) -> Iterator[None]:
        saved = buffers.kv_lens.clone()
        try:
            yield
        finally:
            buffers.kv_lens.copy_(saved)


class HidesCounter(WithoutReference):
    """A counter that hangs on an object and not in the buffers advances with every call, warm-up included."""

    def allocate(self, device: torch.device) -> Buffers:
        self.counter = torch.zeros(ROWS, dtype=torch.int32, device=device)
        return super().allocate(device)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        self.counter.add_(1)
        buffers.out.copy_(self.masked(buffers).sum(1) + self.counter)
        return {"out": buffers.out}


class DeclaresCounter(WithoutReference):
    mutates = ("counter",)

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(
            **dict(super().allocate(device).items()), counter=torch.zeros(ROWS, dtype=torch.int32, device=device)
        )

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.counter.add_(1)
        buffers.out.copy_(self.masked(buffers).sum(1) + buffers.counter)
        return {"out": buffers.out}


ZOO = [
    Entry("GC602", "plans-lazily", PlansLazily, PlansEachStep, "a plan is made by the first call only"),
    Entry("GC604", "drifts-in-warmup", DriftsInWarmup, RestoresAfterWarmup, "warm-up advances a length"),
    Entry("GC604", "hides-counter", HidesCounter, DeclaresCounter, "warm-up advances a counter nobody declared"),
]
