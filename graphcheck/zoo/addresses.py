"""Addresses that moved or died after capture."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from hypothesis.strategies import SearchStrategy

from graphcheck.cases import Case
from graphcheck.component import Buffers
from graphcheck.strategies import case, contents, integers, lengths
from graphcheck.zoo import Entry
from graphcheck.zoo.rows import ROWS, WIDTH, MaskedSum, WithoutReference


class Rebinds(MaskedSum):
    """Staging makes a new tensor instead of copying into the old one."""

    def stage(self, buffers: Buffers, case: Case) -> None:
        buffers.lens.copy_(case.lens)
        buffers.x = case.x.tensor(ROWS, WIDTH).to(buffers.lens.device)


class Evicts(WithoutReference):
    """A cache of one entry a request id: the entry that the graph reads is dropped for the next one."""

    def allocate(self, device: torch.device) -> Buffers:
        self.served = 0
        self.entries: dict[int, torch.Tensor] = {}
        return super().allocate(device)

    def cases(self) -> SearchStrategy[Case]:
        return case(lens=lengths(ROWS, 1, WIDTH, page=8), x=contents(("normal",)), bias=integers(1, 9))

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.served += 1
        self.entries = {self.served: torch.full((ROWS,), float(case.bias), device=buffers.x.device)}

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.masked(buffers).sum(1) + self.entries[self.served])
        return {"out": buffers.out}


class KeepsEntry(Evicts):
    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(**dict(super().allocate(device).items()), bias=torch.empty(ROWS, device=device))

    def stage(self, buffers: Buffers, case: Case) -> None:
        MaskedSum.stage(self, buffers, case)
        buffers.bias.fill_(float(case.bias))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.masked(buffers).sum(1) + buffers.bias)
        return {"out": buffers.out}


class ReloadsByAssignment(WithoutReference):
    """A weight reload that gives the parameter other memory."""

    def allocate(self, device: torch.device) -> Buffers:
        self.layer = torch.nn.Linear(WIDTH, 1, bias=False, device=device).requires_grad_(False)
        return super().allocate(device)

    def cases(self) -> SearchStrategy[Case]:
        return case(lens=lengths(ROWS, 1, WIDTH, page=8), x=contents(("normal",)), weight=contents(("normal", "ramp")))

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.reload(case.weight.tensor(1, WIDTH).to(buffers.x.device))

    def reload(self, weight: torch.Tensor) -> None:
        """Bring ``weight`` [1, width], device, into the layer."""
        self.layer.weight.data = weight

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_((self.masked(buffers) * self.layer.weight).sum(1))
        return {"out": buffers.out}


class ReloadsByCopy(ReloadsByAssignment):
    def reload(self, weight: torch.Tensor) -> None:
        self.layer.weight.copy_(weight)


class GrowsWorkspace(MaskedSum):
    """Scratch grows when a larger batch comes by; graphs captured before keep the old address."""

    scratch = ("work",)

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(**dict(super().allocate(device).items()), work=torch.empty(0, device=device))

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.reserve(buffers, 1 + int(case.lens.max()))

    def reserve(self, buffers: Buffers, width: int) -> None:
        """Have at least [rows, width] of scratch."""
        if buffers.work.numel() < ROWS * width:
            buffers.work = torch.empty(ROWS, width, device=buffers.x.device)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        width = buffers.work.shape[1]
        torch.mul(self.padded(buffers)[:, :width], 1.0, out=buffers.work)
        buffers.out.copy_(buffers.work.cumsum(1)[:, -1])
        return {"out": buffers.out}

    def padded(self, buffers: Buffers) -> torch.Tensor:
        """The masked rows with one more column of zeros, [rows, width + 1]."""
        return torch.nn.functional.pad(self.masked(buffers), (0, 1))


class SizesForMost(GrowsWorkspace):
    def allocate(self, device: torch.device) -> Buffers:
        buffers = super().allocate(device)
        buffers.work = torch.empty(ROWS, WIDTH + 1, device=device)
        return buffers


class CreatesOnFirstUse(MaskedSum):
    """The scratch buffer is made by the first call, which is the capture: its block belongs to the graph's pool."""

    warmup = 0

    def allocate(self, device: torch.device) -> Buffers:
        self.work: torch.Tensor | None = None
        return super().allocate(device)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        if self.work is None:
            self.work = torch.empty(ROWS, WIDTH, device=buffers.x.device)
        self.work.copy_(self.masked(buffers))
        buffers.out.copy_(self.work.sum(1))
        return {"out": buffers.out}


class CreatesAhead(MaskedSum):
    warmup = 0
    scratch = ("work",)

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(**dict(super().allocate(device).items()), work=torch.empty(ROWS, WIDTH, device=device))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.work.copy_(self.masked(buffers))
        buffers.out.copy_(buffers.work.sum(1))
        return {"out": buffers.out}


class CachesCast(WithoutReference):
    """A half-precision copy of the weight is made by the first call and kept; reloads change the weight only."""

    def allocate(self, device: torch.device) -> Buffers:
        self.half: torch.Tensor | None = None
        return Buffers(**dict(super().allocate(device).items()), weight=torch.empty(WIDTH, device=device))

    def cases(self) -> SearchStrategy[Case]:
        return case(lens=lengths(ROWS, 1, WIDTH, page=8), x=contents(("normal",)), weight=contents(("normal", "ramp")))

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        case.weight.fill(buffers.weight)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        if self.half is None:
            self.half = buffers.weight.to(torch.bfloat16)
        buffers.out.copy_((self.masked(buffers) * self.half).sum(1))
        return {"out": buffers.out}


class CastsInside(CachesCast):
    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_((self.masked(buffers) * buffers.weight.to(torch.bfloat16)).sum(1))
        return {"out": buffers.out}


class EvictsPinned(KeepsEntry):
    """The pinned source of a captured copy is a cache entry, dropped for the next one."""

    def stage(self, buffers: Buffers, case: Case) -> None:
        MaskedSum.stage(self, buffers, case)
        self.served += 1
        self.hosts = {self.served: torch.full((ROWS,), float(case.bias)).pin_memory()}

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.bias.copy_(self.hosts[self.served], non_blocking=True)
        buffers.out.copy_(self.masked(buffers).sum(1) + buffers.bias)
        return {"out": buffers.out}


class OverwritesPinned(KeepsEntry):
    """One pinned staging buffer is filled for the next step while the copy of this one may still be queued."""

    scratch = ("bias",)

    def allocate(self, device: torch.device) -> Buffers:
        self.copied: torch.cuda.Event | None = None
        return Buffers(**dict(super().allocate(device).items()), host=torch.empty(ROWS, pin_memory=True))

    def stage(self, buffers: Buffers, case: Case) -> None:
        # Before the blocking copies of the rest, which would wait for the replay.
        if self.copied is not None:
            self.copied.synchronize()
        buffers.host.fill_(float(case.bias))
        MaskedSum.stage(self, buffers, case)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.bias.copy_(buffers.host, non_blocking=True)
        buffers.out.copy_(self.masked(buffers).sum(1) + buffers.bias)
        return {"out": buffers.out}


class KeepsPinned(OverwritesPinned):
    """The same with an event after each replay, which staging waits for."""

    def observe(self, buffers: Buffers, outputs: Mapping[str, torch.Tensor]) -> None:
        self.copied = torch.cuda.Event()
        self.copied.record()


class DisposesEarly(MaskedSum):
    """The memory of an intermediate is given away while a view of it is still to be read."""

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        rows = self.masked(buffers).clone()
        view = rows[:, :]
        self.dispose(rows)
        buffers.out.copy_(view.sum(1))
        return {"out": buffers.out}

    def dispose(self, rows: torch.Tensor) -> None:
        """Give the memory of ``rows`` away."""
        rows.untyped_storage().resize_(0)


class DisposesLast(DisposesEarly):
    def dispose(self, rows: torch.Tensor) -> None:
        return None


ZOO = [
    Entry("GC401", "rebinds", Rebinds, MaskedSum, "a static input is rebound instead of copied into"),
    Entry("GC402", "evicts", Evicts, KeepsEntry, "the entry that the graph reads is dropped"),
    Entry("GC403", "reloads-by-assignment", ReloadsByAssignment, ReloadsByCopy, "a reload gives weights other memory"),
    Entry("GC404", "grows-workspace", GrowsWorkspace, SizesForMost, "scratch is replaced by a larger one"),
    Entry("GC405", "creates-on-first-use", CreatesOnFirstUse, CreatesAhead, "scratch is born inside the capture"),
    Entry("GC406", "caches-cast", CachesCast, CastsInside, "the graph reads a cached cast of a weight"),
    Entry("GC407", "evicts-pinned", EvictsPinned, KeepsPinned, "the host source of a captured copy is dropped"),
    Entry(
        "GC408",
        "overwrites-pinned",
        OverwritesPinned,
        KeepsPinned,
        "pinned memory is filled again while a copy from it may be queued",
        backends=("emulator",),
        reason="on hardware the copy has mostly run by then",
    ),
    Entry(
        "GC410",
        "disposes-early",
        DisposesEarly,
        DisposesLast,
        "an operation takes a tensor whose memory was given away",
        backends=("emulator",),
        reason="a null address faults on a real device, and the process is lost",
    ),
]
