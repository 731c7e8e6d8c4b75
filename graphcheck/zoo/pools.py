"""Outputs kept too long, graphs that share a pool, and allocation inside the region."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from graphcheck.cases import Case
from graphcheck.component import Buffers
from graphcheck.strategies import case, contents, lengths
from graphcheck.zoo import Entry
from graphcheck.zoo.rows import ROWS, WIDTH, MaskedSum, WithoutReference


class KeepsOutput(MaskedSum):
    """The consumer collects the output tensor itself; every replay overwrites what it collected."""

    def allocate(self, device: torch.device) -> Buffers:
        self.collected: list[torch.Tensor] = []
        return super().allocate(device)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        return {"out": self.masked(buffers).sum(1)}

    def observe(self, buffers: Buffers, outputs: Mapping[str, torch.Tensor]) -> Any:
        self.collected.append(self.keep(outputs["out"]))
        return self.collected[-2:]

    def keep(self, output: torch.Tensor) -> torch.Tensor:
        """What the consumer holds on to."""
        return output


class ClonesOutput(KeepsOutput):
    def keep(self, output: torch.Tensor) -> torch.Tensor:
        return output.clone()


class SharesPool(WithoutReference):
    """Two graphs in one pool: the second's output lies where the first had an intermediate.

    The consumer needs the last output of each graph, also after the other one has run.
    """

    def allocate(self, device: torch.device) -> Buffers:
        self.doubled = False
        self.latest: dict[bool, torch.Tensor] = {}
        return super().allocate(device)

    def cases(self) -> SearchStrategy[Case]:
        return case(lens=lengths(ROWS, 1, WIDTH, page=8), x=contents(("normal",)), doubled=st.booleans())

    def key(self, case: Case) -> bool:
        return bool(case.doubled)

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.doubled = bool(case.doubled)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        rows = self.masked(buffers)
        if self.doubled:
            return {"out": rows * 2}
        powers = [rows * factor for factor in range(1, 9)]
        return {"out": torch.stack(powers).sum(0)}

    def observe(self, buffers: Buffers, outputs: Mapping[str, torch.Tensor]) -> Any:
        self.latest[self.doubled] = self.keep(outputs["out"])
        return {str(key): value for key, value in sorted(self.latest.items())}

    def keep(self, output: torch.Tensor) -> torch.Tensor:
        """What the consumer holds on to."""
        return output


class CopiesOut(SharesPool):
    def keep(self, output: torch.Tensor) -> torch.Tensor:
        return output.clone()


class ServesOnTwoStreams(SharesPool):
    """Each of two graphs of one pool is replayed on a stream of its own; neither waits for the other."""

    waits = False

    def allocate(self, device: torch.device) -> Buffers:
        self.lanes = [torch.cuda.Stream(), torch.cuda.Stream()]
        return super().allocate(device)

    def stage(self, buffers: Buffers, case: Case) -> None:
        lane = self.lanes[int(case.doubled)]
        if self.waits:
            lane.wait_stream(torch.cuda.current_stream())
        torch.cuda.set_stream(lane)
        super().stage(buffers, case)

    def keep(self, output: torch.Tensor) -> torch.Tensor:
        return output.clone()


class ServesInTurn(ServesOnTwoStreams):
    waits = True


class HandsOutBoth(SharesPool):
    """Each of two graphs returns an output of its own, and the consumer needs both; only its own graphs run in between.

    The outputs overlap with nothing that the two graphs write, so all is well until somebody else is given the pool.
    """

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        return {"out": torch.cat([self.masked(buffers)] * (64 if self.doubled else 32), 1)}


class HandsOutCopies(HandsOutBoth):
    def keep(self, output: torch.Tensor) -> torch.Tensor:
        return output.clone()


class SharesWorkspace(WithoutReference):
    """The first capture allocates the workspace that later graphs take from a cache; the cache does not own it."""

    def allocate(self, device: torch.device) -> Buffers:
        self.cached: Any = None
        self.doubled = False
        return super().allocate(device)

    def cases(self) -> SearchStrategy[Case]:
        return case(lens=lengths(ROWS, 1, WIDTH, page=8), x=contents(("normal",)), doubled=st.booleans())

    def key(self, case: Case) -> bool:
        return bool(case.doubled)

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.doubled = bool(case.doubled)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        work = self.workspace(buffers)
        torch.mul(self.masked(buffers), 2 if self.doubled else 1, out=work)
        buffers.out.copy_(work.sum(1))
        return {"out": buffers.out} if self.doubled else {"out": buffers.out, "work": work}

    def workspace(self, buffers: Buffers) -> torch.Tensor:
        """Scratch [rows, width] for the region."""
        work: torch.Tensor | None = self.cached() if self.cached is not None else None
        if work is None:
            work = torch.empty_like(buffers.x)
            self.cached = weakref.ref(work)
        return work


class OwnsWorkspace(SharesWorkspace):
    scratch = ("work",)

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(**dict(super().allocate(device).items()), work=torch.empty(ROWS, WIDTH, device=device))

    def workspace(self, buffers: Buffers) -> torch.Tensor:
        return buffers.work


class AllocatesInside(MaskedSum):
    """Declares an allocation-free region and makes temporaries all the same."""

    allocation = "none"


class AllocatesAhead(MaskedSum):
    allocation = "none"
    scratch = ("valid", "work")

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(
            **dict(super().allocate(device).items()),
            zeros=torch.zeros(ROWS, WIDTH, device=device),
            valid=torch.empty(ROWS, WIDTH, dtype=torch.bool, device=device),
            work=torch.empty(ROWS, WIDTH, device=device),
        )

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        torch.lt(buffers.columns, buffers.lens.unsqueeze(1), out=buffers.valid)
        torch.where(buffers.valid, buffers.x, buffers.zeros, out=buffers.work)
        torch.sum(buffers.work, 1, out=buffers.out)
        return {"out": buffers.out}


class OverBudget(MaskedSum):
    allocation = ROWS * WIDTH * 4


class WithinBudget(MaskedSum):
    allocation = 8 * ROWS * WIDTH * 4


class BorrowsFromArena(WithoutReference):
    """Scratch comes from an allocator without a pool for graphs; what the capture gives back, others get."""

    blocks = 12

    def allocate(self, device: torch.device) -> Buffers:
        self.free = [torch.zeros(ROWS, WIDTH, device=device) for _ in range(self.blocks)]
        self.backups: list[torch.Tensor] = []
        return super().allocate(device)

    def cases(self) -> SearchStrategy[Case]:
        return case(lens=lengths(ROWS, 1, WIDTH, page=8), x=contents(("normal",)))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        work = self.borrow(buffers)
        work.copy_(self.masked(buffers))
        buffers.out.copy_(work.sum(1))
        self.give_back(work)
        return {"out": buffers.out}

    def borrow(self, buffers: Buffers) -> torch.Tensor:
        """Scratch [rows, width] for the region."""
        return self.free.pop()

    def give_back(self, work: torch.Tensor) -> None:
        """The region needs its scratch no longer."""
        self.free.append(work)

    def observe(self, buffers: Buffers, outputs: Mapping[str, torch.Tensor]) -> Any:
        backup = self.free.pop()
        backup.copy_(outputs["out"].unsqueeze(1).expand(ROWS, WIDTH))
        self.backups.append(backup)
        return self.backups[-2:]


class HoldsForGraph(BorrowsFromArena):
    scratch = ("work",)

    def allocate(self, device: torch.device) -> Buffers:
        buffers = super().allocate(device)
        return Buffers(**dict(buffers.items()), work=self.free.pop())

    def borrow(self, buffers: Buffers) -> torch.Tensor:
        return buffers.work

    def give_back(self, work: torch.Tensor) -> None:
        return None


class KeepsOutputOfEach(WithoutReference):
    """Every bucket's graph returns a tensor of its own: each is within the budget, all of them are not."""

    allocation = 24 * 1024

    def allocate(self, device: torch.device) -> Buffers:
        self.bucket = 1
        return super().allocate(device)

    def cases(self) -> SearchStrategy[Case]:
        return case(lens=lengths(ROWS, 1, WIDTH, page=8), x=contents(("normal",)), bucket=st.sampled_from((1, 2, 3, 4)))

    def key(self, case: Case) -> int:
        return int(case.bucket)

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.bucket = int(case.bucket)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        return {"wide": self.masked(buffers).repeat(1, 32) * self.bucket}


class SharesOutput(KeepsOutputOfEach):
    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(**dict(super().allocate(device).items()), wide=torch.empty(ROWS, 32 * WIDTH, device=device))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        torch.mul(self.masked(buffers).repeat(1, 32), self.bucket, out=buffers.wide)
        return {"wide": buffers.wide}


ZOO = [
    Entry(
        "GC411",
        "shares-workspace",
        SharesWorkspace,
        OwnsWorkspace,
        "a cached workspace belongs to the graph that was captured first, and goes with it",
    ),
    Entry("GC501", "keeps-output", KeepsOutput, ClonesOutput, "an output is kept across replays"),
    Entry("GC502", "shares-pool", SharesPool, CopiesOut, "an output is needed after another graph of its pool ran"),
    Entry(
        "GC502",
        "hands-out-both",
        HandsOutBoth,
        HandsOutCopies,
        "outputs are needed after another component's graph ran in the pool",
    ),
    Entry(
        "GC503",
        "serves-on-two-streams",
        ServesOnTwoStreams,
        ServesInTurn,
        "two graphs of one pool are replayed on two streams",
        backends=("emulator",),
        reason="on hardware small replays hardly ever overlap, and nothing there keeps the order of streams",
    ),
    Entry("GC504", "borrows-from-arena", BorrowsFromArena, HoldsForGraph, "scratch of the capture is handed out again"),
    Entry("GC505", "allocates-inside", AllocatesInside, AllocatesAhead, "a region declared allocation-free allocates"),
    Entry("GC505", "over-budget", OverBudget, WithinBudget, "the region keeps more pool memory than its budget"),
    Entry(
        "GC506", "keeps-output-of-each", KeepsOutputOfEach, SharesOutput, "each graph of a pool keeps its own output"
    ),
]
