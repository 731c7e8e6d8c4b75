"""Warm-up that consumes work or advances state."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from hypothesis.strategies import SearchStrategy

from graphcheck.cases import Case
from graphcheck.component import Buffers
from graphcheck.strategies import case, contents, lengths
from graphcheck.zoo import Entry
from graphcheck.zoo.rows import ROWS, WIDTH, MaskedSum, WithoutReference


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


class ZeroesOnFirstCall(WithoutReference):
    """The first call clears the total; there is no warm-up, so the first call is the capture."""

    mutates = ("total",)
    warmup = 0

    def allocate(self, device: torch.device) -> Buffers:
        self.ready = False
        return Buffers(**dict(super().allocate(device).items()), total=torch.zeros(ROWS, device=device))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        if not self.ready:
            buffers.total.zero_()
            self.ready = True
        buffers.total.add_(self.masked(buffers).sum(1))
        buffers.out.copy_(buffers.total)
        return {"out": buffers.out}


class ZeroesAhead(ZeroesOnFirstCall):
    def allocate(self, device: torch.device) -> Buffers:
        buffers = super().allocate(device)
        self.ready = True
        return buffers


class CalibratesThreeTimes(WithoutReference):
    """The first three calls measure a scale and later ones use it; one warm-up run is not enough."""

    mutates = ("scale",)
    warmup = 1

    def allocate(self, device: torch.device) -> Buffers:
        self.calls = 0
        return Buffers(**dict(super().allocate(device).items()), scale=torch.ones((), device=device))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        self.calls += 1
        rows = self.masked(buffers)
        if self.calls <= 3:
            buffers.scale.copy_(1 + rows.abs().amax())
        buffers.out.copy_(rows.sum(1) / buffers.scale)
        return {"out": buffers.out}


class CalibratesEachStep(CalibratesThreeTimes):
    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        self.calls = 0
        return super().run(buffers)


class CompilesInside(MaskedSum):
    """The first call compiles, and the first call is the capture."""

    warmup = 0

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        masked = torch.compile(self.masked)
        buffers.out.copy_(masked(buffers).sum(1))
        return {"out": buffers.out}


class CompilesAhead(MaskedSum):
    warmup = 0

    def allocate(self, device: torch.device) -> Buffers:
        self.compiled = torch.compile(MaskedSum.masked)
        return super().allocate(device)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.compiled(self, buffers).sum(1))
        return {"out": buffers.out}


class DropsGraphInside(MaskedSum):
    """An old graph that only a reference cycle keeps alive is collected inside the region."""

    warmup = 0

    def allocate(self, device: torch.device) -> Buffers:
        buffers = super().allocate(device)
        self.retired: list[object] = []
        self.old: torch.cuda.CUDAGraph | None = torch.cuda.CUDAGraph()
        # Not torch.cuda.graph, which collects garbage itself.
        with torch.cuda.stream(torch.cuda.Stream()):
            self.old.capture_begin()
            torch.neg(buffers.columns)
            self.old.capture_end()
        return buffers

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        if self.old is not None:
            self.retired = [self.old]
            self.retired.append(self.retired)
            self.old = None

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        self.drop()
        return super().run(buffers)

    def drop(self) -> None:
        """Let go of the old graph."""
        if self.retired:
            self.retired = []
            gc.collect(1)


class DropsGraphAhead(DropsGraphInside):
    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.drop()

    run = MaskedSum.run


ZOO = [
    Entry(
        "GC601",
        "compiles-inside",
        CompilesInside,
        CompilesAhead,
        "the first call, which compiles, is the capture",
        backends=("emulator",),
        reason="a compiler inside a capture takes seconds, and whether it fails depends on its version",
    ),
    Entry("GC602", "plans-lazily", PlansLazily, PlansEachStep, "a plan is made by the first call only"),
    Entry("GC603", "zeroes-on-first-call", ZeroesOnFirstCall, ZeroesAhead, "every replay clears the state again"),
    Entry("GC604", "drifts-in-warmup", DriftsInWarmup, RestoresAfterWarmup, "warm-up advances a length"),
    Entry("GC604", "hides-counter", HidesCounter, DeclaresCounter, "warm-up advances a counter nobody declared"),
    Entry("GC605", "calibrates-three-times", CalibratesThreeTimes, CalibratesEachStep, "captured while still settling"),
    Entry(
        "GC606",
        "drops-graph-inside",
        DropsGraphInside,
        DropsGraphAhead,
        "a graph is collected inside the region",
        backends=("emulator",),
        reason="destroying a real graph inside a capture may break the capture before anything is said",
    ),
]
