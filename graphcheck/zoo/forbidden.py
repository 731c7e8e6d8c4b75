"""Things that a capturing stream refuses."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from graphcheck.cases import Case
from graphcheck.component import Buffers
from graphcheck.finding import Severity
from graphcheck.zoo import Entry
from graphcheck.zoo.rows import WIDTH, MaskedSum, WithoutReference


class Synchronises(MaskedSum):
    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        outputs = super().run(buffers)
        torch.cuda.synchronize()
        return outputs


class ReadsLongest(MaskedSum):
    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        longest = int(buffers.lens.max().item())
        buffers.out.copy_(self.masked(buffers)[:, :longest].sum(1))
        return {"out": buffers.out}


class BuildsTensor(WithoutReference):
    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        weights = torch.tensor([float(column % 3) for column in range(WIDTH)], device=buffers.x.device)
        buffers.out.copy_((self.masked(buffers) * weights).sum(1))
        return {"out": buffers.out}


class HoldsTensor(WithoutReference):
    def allocate(self, device: torch.device) -> Buffers:
        buffers = super().allocate(device)
        weights = torch.tensor([float(column % 3) for column in range(WIDTH)], device=device)
        return Buffers(**dict(buffers.items()), weights=weights)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_((self.masked(buffers) * buffers.weights).sum(1))
        return {"out": buffers.out}


class BranchesOnTensor(WithoutReference):
    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        total = self.masked(buffers).sum(1)
        if (total > 0).any():
            total = total * 2
        buffers.out.copy_(total)
        return {"out": buffers.out}


class ChoosesOnDevice(WithoutReference):
    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        total = self.masked(buffers).sum(1)
        buffers.out.copy_(torch.where((total > 0).any(), total * 2, total))
        return {"out": buffers.out}


class SelectsByMask(WithoutReference):
    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        valid = buffers.columns < buffers.lens.unsqueeze(1)
        buffers.out.copy_(buffers.x[valid].sum().expand(buffers.out.shape))
        return {"out": buffers.out}


class SumsUnderMask(WithoutReference):
    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.masked(buffers).sum().expand(buffers.out.shape))
        return {"out": buffers.out}


class IndexesWithList(WithoutReference):
    """The order of the rows is a Python list, which travels to the device first."""

    order = (2, 0, 3, 1)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.masked(buffers)[list(self.order)].sum(1))
        return {"out": buffers.out}


class IndexesWithBuffer(IndexesWithList):
    def allocate(self, device: torch.device) -> Buffers:
        order = torch.tensor(self.order, device=device)
        return Buffers(**dict(super().allocate(device).items()), order=order)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.masked(buffers).index_select(0, buffers.order).sum(1))
        return {"out": buffers.out}


class SlicesByTensor(WithoutReference):
    """The end of a slice is a device tensor."""

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        rows = self.masked(buffers)[:, : buffers.lens.max()]
        buffers.out.copy_(rows.amax(1) if rows.shape[1] else torch.zeros_like(buffers.out))
        return {"out": buffers.out}


class MasksBySlice(WithoutReference):
    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.masked(buffers).amax(1))
        return {"out": buffers.out}


class QueriesEvent(MaskedSum):
    """The region asks an event whether the previous step is done."""

    def allocate(self, device: torch.device) -> Buffers:
        self.done = torch.cuda.Event()
        return super().allocate(device)

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.done.record()
        self.ask()

    def ask(self) -> None:
        """Ask outside the region, where it is allowed."""
        self.done.query()


class QueriesEventInside(QueriesEvent):
    def ask(self) -> None:
        return None

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        self.done.query()
        return super().run(buffers)


class PinsInside(MaskedSum):
    """The region makes its own pinned staging buffer and copies the answer into it."""

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        outputs = super().run(buffers)
        self.host = torch.empty(buffers.out.shape, pin_memory=True)
        self.host.copy_(buffers.out, non_blocking=True)
        return outputs


class PinsAhead(MaskedSum):
    def allocate(self, device: torch.device) -> Buffers:
        buffers = super().allocate(device)
        return Buffers(**dict(buffers.items()), host=torch.empty(buffers.out.shape, pin_memory=True))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        outputs = super().run(buffers)
        buffers.host.copy_(buffers.out, non_blocking=True)
        return outputs


ZOO = [
    Entry("GC101", "synchronises", Synchronises, MaskedSum, "the region waits for the device"),
    Entry("GC102", "reads-longest", ReadsLongest, MaskedSum, "the region reads the longest length on the host"),
    Entry("GC103", "builds-tensor", BuildsTensor, HoldsTensor, "the region uploads a Python list"),
    Entry("GC104", "branches-on-tensor", BranchesOnTensor, ChoosesOnDevice, "a Python if asks a device tensor"),
    Entry("GC105", "indexes-with-list", IndexesWithList, IndexesWithBuffer, "a Python list indexes a device tensor"),
    Entry("GC106", "slices-by-tensor", SlicesByTensor, MasksBySlice, "a device tensor bounds a slice"),
    Entry("GC107", "selects-by-mask", SelectsByMask, SumsUnderMask, "a boolean index has a data-dependent shape"),
    Entry("GC108", "queries-event", QueriesEventInside, QueriesEvent, "the region asks whether an event has completed"),
    Entry(
        "GC110",
        "pins-inside",
        PinsInside,
        PinsAhead,
        "the region allocates pinned memory",
        severity=Severity.WARNING,
    ),
]
