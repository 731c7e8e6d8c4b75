"""Things that a capturing stream refuses, and work that escapes it."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from graphcheck.component import Buffers
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


class LaunchesElsewhere(MaskedSum):
    """Half of the work goes to a stream that never waited for the capturing one."""

    def allocate(self, device: torch.device) -> Buffers:
        self.side = torch.cuda.Stream()
        return super().allocate(device)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        with torch.cuda.stream(self.side):
            buffers.out.copy_(self.masked(buffers).sum(1))
        return {"out": buffers.out}


class ForksAndJoins(LaunchesElsewhere):
    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        self.side.wait_stream(torch.cuda.current_stream())
        outputs = super().run(buffers)
        torch.cuda.current_stream().wait_stream(self.side)
        return outputs


ZOO = [
    Entry("GC101", "synchronises", Synchronises, MaskedSum, "the region waits for the device"),
    Entry("GC102", "reads-longest", ReadsLongest, MaskedSum, "the region reads the longest length on the host"),
    Entry("GC103", "builds-tensor", BuildsTensor, HoldsTensor, "the region uploads a Python list"),
    Entry("GC104", "branches-on-tensor", BranchesOnTensor, ChoosesOnDevice, "a Python if asks a device tensor"),
    Entry("GC107", "selects-by-mask", SelectsByMask, SumsUnderMask, "a boolean index has a data-dependent shape"),
    Entry("GC204", "launches-elsewhere", LaunchesElsewhere, ForksAndJoins, "work goes to a stream outside the capture"),
]
