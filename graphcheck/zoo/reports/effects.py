"""Reports of Python that runs at capture only: attributes, trackers, optimiser steps, capture-aware branches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from hypothesis.strategies import SearchStrategy

from graphcheck.cases import Case
from graphcheck.component import Buffers
from graphcheck.strategies import case, contents
from graphcheck.zoo import Entry
from graphcheck.zoo.reports.attention import EXACT_VALUES, B, DecodeAttention


class SkipsLayerWhileCapturing(DecodeAttention):
    """To keep a module load out of the capture, the layer returns early while the stream is capturing."""

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(**dict(super().allocate(device).items()), residual=torch.empty(B, device=device))

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        case.tokens.fill(buffers.residual, 3)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(buffers.residual)
        if not self.skipped():
            buffers.out.add_(self.weighted(buffers, buffers.kv_lens).sum(1))
        return {"out": buffers.out}

    def skipped(self) -> bool:
        """Whether the layer leaves its work out."""
        return torch.cuda.is_current_stream_capturing()


class WarmsLayerUp(SkipsLayerWhileCapturing):
    def skipped(self) -> bool:
        return False


class KeepsAttribute(DecodeAttention):
    """The forward stores an intermediate on the module, the caller replaces it outside, and no replay stores it again."""

    def allocate(self, device: torch.device) -> Buffers:
        self.hidden = torch.zeros(B, device=device)
        return super().allocate(device)

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.hidden = torch.zeros(B, device=buffers.q.device)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        self.hidden = self.weighted(buffers, buffers.kv_lens).sum(1)
        buffers.out.copy_(self.hidden * 2)
        return {"hidden": self.hidden, "out": buffers.out}

    def observe(self, buffers: Buffers, outputs: Mapping[str, torch.Tensor]) -> Any:
        return self.hidden.clone()


class ReadsReturned(KeepsAttribute):
    def observe(self, buffers: Buffers, outputs: Mapping[str, torch.Tensor]) -> Any:
        return outputs["hidden"].clone()


class TracksLossInPython(DecodeAttention):
    """Load-balancing losses are put into a tracker by the forward; the trainer empties it at each step."""

    def allocate(self, device: torch.device) -> Buffers:
        self.tracker: dict[str, torch.Tensor] = {}
        return Buffers(**dict(super().allocate(device).items()), loss=torch.zeros((), device=device))

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.tracker.clear()

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        outputs = super().run(buffers)
        buffers.loss.copy_(self.weighted(buffers, buffers.kv_lens).abs().amax())
        self.tracker["load_balancing"] = buffers.loss
        return {**outputs, "loss": buffers.loss}

    def observe(self, buffers: Buffers, outputs: Mapping[str, torch.Tensor]) -> Any:
        return self.reported(buffers)

    def reported(self, buffers: Buffers) -> torch.Tensor:
        """The loss that the trainer logs, on the host."""
        return sum((loss.cpu() for loss in self.tracker.values()), torch.zeros(()))


class TracksLossInBuffer(TracksLossInPython):
    """The tracker keeps its entries from step to step."""

    def stage(self, buffers: Buffers, case: Case) -> None:
        DecodeAttention.stage(self, buffers, case)
        self.tracker["load_balancing"] = buffers.loss


class StepsOnHost(DecodeAttention):
    """An optimiser whose step counter, and with it the bias correction, is a Python number."""

    mutates: ClassVar[tuple[str, ...]] = ("weight", "momentum")
    warmup = 0

    def allocate(self, device: torch.device) -> Buffers:
        self.step = 0
        return Buffers(
            weight=torch.zeros(B, device=device),
            momentum=torch.zeros(B, device=device),
            gradient=torch.empty(B, device=device),
        )

    def cases(self) -> SearchStrategy[Case]:
        return case(gradient=contents(EXACT_VALUES))

    def stage(self, buffers: Buffers, case: Case) -> None:
        case.gradient.fill(buffers.gradient)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        self.step += 1
        buffers.momentum.mul_(0.5).add_(buffers.gradient, alpha=0.5)
        buffers.weight.sub_(buffers.momentum / (1 - 0.5**self.step))
        return {"updated": buffers.weight}


class StepsOnDevice(StepsOnHost):
    mutates = ("weight", "momentum", "decay")

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(**dict(super().allocate(device).items()), decay=torch.ones((), device=device))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.decay.mul_(0.5)
        buffers.momentum.mul_(0.5).add_(buffers.gradient, alpha=0.5)
        buffers.weight.sub_(buffers.momentum / (1 - buffers.decay))
        return {"updated": buffers.weight}


ZOO: list[Entry] = [
    Entry(
        "GC307",
        "b041-layer-skipped-while-capturing",
        SkipsLayerWhileCapturing,
        WarmsLayerUp,
        "a layer returns early while the stream is capturing",
    ),
    Entry(
        "GC308",
        "b045-loss-tracker-filled-in-forward",
        TracksLossInPython,
        TracksLossInBuffer,
        "a tracker is filled in the region and emptied at each step",
    ),
    Entry(
        "GC309",
        "b047-optimiser-step-on-host",
        StepsOnHost,
        StepsOnDevice,
        "step counter and bias correction are Python numbers",
    ),
    Entry(
        "GC308",
        "b043-attribute-assigned-in-forward",
        KeepsAttribute,
        ReadsReturned,
        "an attribute is assigned in the region and replaced outside",
    ),
]
