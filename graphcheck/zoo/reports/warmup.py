"""Reports of warm-up that advances state or consumes work, and of objects born in the first call."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from hypothesis.strategies import SearchStrategy

from graphcheck.cases import Case
from graphcheck.component import Buffers
from graphcheck.strategies import case, contents, lengths
from graphcheck.zoo import Entry
from graphcheck.zoo.reports.attention import CAPACITY, EXACT_VALUES, PAGE, B, DecodeAttention, columns

DRAFT_STEPS = 2


class DraftAdvancesLengths(DecodeAttention):
    """The draft loop adds each step's token to the lengths in place; they are prepared once before warm-up."""

    mutates = ("kv_lens",)
    restores = ("kv_lens",)

    def cases(self) -> SearchStrategy[Case]:
        return case(kv_lens=lengths(B, 1, CAPACITY - DRAFT_STEPS, page=PAGE), tokens=contents(EXACT_VALUES))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.zero_()
        for _ in range(DRAFT_STEPS):
            buffers.kv_lens.add_(1)
            buffers.out.mul_(2).add_(self.weighted(buffers, buffers.kv_lens).sum(1))
        return {"out": buffers.out}


class DraftRestoresLengths(DraftAdvancesLengths):
    @contextmanager
    def around_warmup(self, buffers: Buffers) -> Iterator[None]:
        saved = buffers.kv_lens.clone()
        try:
            yield
        finally:
            buffers.kv_lens.copy_(saved)


class CachesWorkspaceInCapture(DecodeAttention):
    """A cached factory makes the workspace in the first call, which is the capture."""

    warmup = 0

    def allocate(self, device: torch.device) -> Buffers:
        self.workspaces: dict[tuple[int, int], torch.Tensor] = {}
        return super().allocate(device)

    def workspace(self, rows: int, width: int, device: torch.device) -> torch.Tensor:
        """The cached workspace of that shape."""
        if (rows, width) not in self.workspaces:
            self.workspaces[rows, width] = torch.empty(rows, width, device=device)
        return self.workspaces[rows, width]

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        weighted = self.weighted(buffers, buffers.kv_lens)
        partials = self.workspace(B, PAGE, buffers.q.device)
        torch.sum(weighted.view(B, PAGE, -1), 2, out=partials)
        buffers.out.copy_(partials.sum(1))
        return {"out": buffers.out}


class CachesWorkspaceBefore(CachesWorkspaceInCapture):
    scratch = ("partials",)

    def allocate(self, device: torch.device) -> Buffers:
        buffers = super().allocate(device)
        return Buffers(**dict(buffers.items()), partials=self.workspace(B, PAGE, device))


class ComputesFrequenciesLazily(DecodeAttention):
    """Rotary frequencies are computed in the first forward and kept on the module."""

    warmup = 0

    def allocate(self, device: torch.device) -> Buffers:
        self.inv_freq: torch.Tensor | None = None
        return super().allocate(device)

    def frequencies(self, buffers: Buffers) -> torch.Tensor:
        """Powers of two [CAPACITY], device: exact, as the case's tokens are."""
        return (columns(buffers.q.device) % PAGE).float().exp2()

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        if self.inv_freq is None:
            self.inv_freq = self.frequencies(buffers)
        buffers.out.copy_((self.weighted(buffers, buffers.kv_lens) * self.inv_freq).sum(1))
        return {"out": buffers.out}


class ComputesFrequenciesAhead(ComputesFrequenciesLazily):
    def allocate(self, device: torch.device) -> Buffers:
        buffers = super().allocate(device)
        self.inv_freq = self.frequencies(buffers)
        return buffers


class CachesCasts(DecodeAttention):
    """Autocast keeps the half-precision copy of a weight; the copy made in warm-up becomes an input of the graph."""

    def allocate(self, device: torch.device) -> Buffers:
        self.cast = False
        return Buffers(
            **dict(super().allocate(device).items()),
            weight=torch.zeros(B, device=device),
            half=torch.zeros(B, dtype=torch.bfloat16, device=device),
        )

    def cases(self) -> SearchStrategy[Case]:
        return case(
            kv_lens=lengths(B, 1, CAPACITY, page=PAGE), tokens=contents(EXACT_VALUES), weight=contents(EXACT_VALUES)
        )

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        case.weight.fill(buffers.weight)

    def half_weight(self, buffers: Buffers) -> torch.Tensor:
        """The weight as the operator wants it, bfloat16 [B], device."""
        if not self.cast:
            buffers.half.copy_(buffers.weight)
            self.cast = True
        return buffers.half

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.weighted(buffers, buffers.kv_lens).sum(1) * self.half_weight(buffers).float())
        return {"out": buffers.out}

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        # An eager step enters an autocast context of its own, with an empty cache.
        self.cast = False
        return self.run(buffers)


class CastsEachTime(CachesCasts):
    def half_weight(self, buffers: Buffers) -> torch.Tensor:
        return buffers.weight.bfloat16()


class TunesInCapture(DecodeAttention):
    """A kernel without a tuned configuration for its key compiles and benchmarks candidates; the first call is the capture."""

    warmup = 0

    def allocate(self, device: torch.device) -> Buffers:
        self.best: dict[int, int] = {}
        return super().allocate(device)

    def tuned(self, key: int, launch: Callable[[int], torch.Tensor]) -> torch.Tensor:
        """The result of the fastest block size for ``key``."""
        if key not in self.best:
            for block in (PAGE, CAPACITY):
                torch.compile(launch)(block)
                torch.cuda.synchronize()
            self.best[key] = PAGE
        return launch(self.best[key])

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        weighted = self.weighted(buffers, buffers.kv_lens)
        buffers.out.copy_(self.tuned(B, lambda block: weighted.view(B, -1, block).sum(2).sum(1)))
        return {"out": buffers.out}


class TunesBefore(TunesInCapture):
    def allocate(self, device: torch.device) -> Buffers:
        buffers = super().allocate(device)
        self.best = {B: PAGE}
        return buffers


class Runner:
    """An engine's holder of a graph, in a reference cycle with itself."""

    def __init__(self, device: torch.device) -> None:
        self.graph = torch.cuda.CUDAGraph()
        self.itself: Runner | None = self
        self.counter = torch.zeros(1, device=device)
        with torch.cuda.stream(torch.cuda.Stream()):
            self.graph.capture_begin()
            self.counter.add_(1)
            self.graph.capture_end()


class CollectsInCapture(DecodeAttention):
    """A graph of an earlier engine, kept by a reference cycle only, is finalised while the next one is captured."""

    warmup = 0

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.runner: Runner | None = Runner(buffers.q.device)
        self.retire(self.runner)

    def retire(self, runner: Runner) -> None:
        """What happens to the earlier engine before the capture."""

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        self.runner = None
        # The collector may run at any allocation; here it does.
        gc.collect(1)
        return super().run(buffers)


class RetiresBeforeCapture(CollectsInCapture):
    def retire(self, runner: Runner) -> None:
        runner.graph.reset()
        runner.itself = None


ZOO = [
    Entry(
        "GC604",
        "b013-draft-loop-advances-lengths",
        DraftAdvancesLengths,
        DraftRestoresLengths,
        "warm-up and capture add accepted tokens to lengths that were prepared once",
    ),
    Entry(
        "GC405",
        "b021-cached-workspace-born-in-capture",
        CachesWorkspaceInCapture,
        CachesWorkspaceBefore,
        "a cached factory makes its workspace under capture",
    ),
    Entry(
        "GC405",
        "b075-frequencies-computed-in-capture",
        ComputesFrequenciesLazily,
        ComputesFrequenciesAhead,
        "a buffer of the module is computed in the first captured forward",
    ),
    Entry(
        "GC601",
        "b079-autotuner-compiles-in-capture",
        TunesInCapture,
        TunesBefore,
        "a cache miss under capture compiles and benchmarks the candidates",
        backends=("emulator",),
        reason="a real compiler touches random state before it compiles",
    ),
    Entry(
        "GC406",
        "b073-autocast-copy-from-warm-up",
        CachesCasts,
        CastsEachTime,
        "the cast that warm-up cached is an input of the graph",
    ),
    Entry(
        "GC606",
        "b081-old-graph-collected-in-capture",
        CollectsInCapture,
        RetiresBeforeCapture,
        "the collector finalises an old graph while the next one is captured",
    ),
]
