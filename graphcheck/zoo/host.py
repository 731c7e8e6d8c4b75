"""Host code around and inside the region: side effects, schedules, hooks, context, code that knows it is captured."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import ClassVar

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from graphcheck.cases import Case
from graphcheck.component import Buffers
from graphcheck.strategies import case, contents, lengths
from graphcheck.zoo import Entry
from graphcheck.zoo.rows import ROWS, WIDTH, WithoutReference


class DoublesUnlessCapturing(WithoutReference):
    """Asks whether it is captured and leaves half of the work out."""

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        total = self.masked(buffers).sum(1)
        if not self.captured():
            total = total * 2
        buffers.out.copy_(total)
        return {"out": buffers.out}

    def captured(self) -> bool:
        """Whether the region takes the short way."""
        return torch.cuda.is_current_stream_capturing()


class DoublesAlways(DoublesUnlessCapturing):
    def captured(self) -> bool:
        return False


class CountsOnHost(WithoutReference):
    """The region advances a position on the host, and staging writes it into a buffer."""

    def allocate(self, device: torch.device) -> Buffers:
        self.position = 0
        return Buffers(
            **dict(super().allocate(device).items()), position=torch.zeros((), dtype=torch.int32, device=device)
        )

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        buffers.position.fill_(self.position)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        self.position += 1
        buffers.out.copy_(self.masked(buffers).sum(1) + buffers.position)
        return {"out": buffers.out}


class CountsOnDevice(WithoutReference):
    mutates = ("position",)

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(
            **dict(super().allocate(device).items()), position=torch.zeros((), dtype=torch.int32, device=device)
        )

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.position.add_(1)
        buffers.out.copy_(self.masked(buffers).sum(1) + buffers.position)
        return {"out": buffers.out}


class DecaysNumber(WithoutReference):
    """A training step whose learning rate is a Python number; the scheduler lowers it after every step."""

    mutates: ClassVar[tuple[str, ...]] = ("weight",)

    def allocate(self, device: torch.device) -> Buffers:
        self.rate = 0.5
        return Buffers(**dict(super().allocate(device).items()), weight=torch.zeros(ROWS, device=device))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.weight.sub_(self.masked(buffers).sum(1) * self.rate)
        buffers.out.copy_(buffers.weight)
        return {"out": buffers.out}

    def observe(self, buffers: Buffers, outputs: Mapping[str, torch.Tensor]) -> None:
        self.rate /= 2


class DecaysTensor(DecaysNumber):
    mutates = ("weight", "rate")

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(**dict(super().allocate(device).items()), rate=torch.full((), 0.5, device=device))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.weight.sub_(self.masked(buffers).sum(1) * buffers.rate)
        buffers.out.copy_(buffers.weight)
        return {"out": buffers.out}

    def observe(self, buffers: Buffers, outputs: Mapping[str, torch.Tensor]) -> None:
        buffers.rate.div_(2)


class SetsAutocast(WithoutReference):
    """Staging switches autocast on and off for the request at hand; the graph has that of the capture."""

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(**dict(super().allocate(device).items()), weight=torch.full((WIDTH, 8), 0.3, device=device))

    def cases(self) -> SearchStrategy[Case]:
        return case(lens=lengths(ROWS, 1, WIDTH, page=8), x=contents(("normal",)), half=st.booleans())

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        torch.set_autocast_enabled("cuda", bool(case.half))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_((self.masked(buffers) @ buffers.weight)[:, 0])
        return {"out": buffers.out}


class KeysByAutocast(SetsAutocast):
    def key(self, case: Case) -> Hashable:
        return bool(case.half)


class CountsByHook(WithoutReference):
    """A forward hook on a layer counts calls on the host, and the consumer reads the count."""

    def allocate(self, device: torch.device) -> Buffers:
        self.calls = 0
        self.layer = torch.nn.Linear(WIDTH, 1, bias=False, device=device).requires_grad_(False)
        self.layer.weight.fill_(0.5)
        self.layer.register_forward_hook(self.count)
        return super().allocate(device)

    def count(self, *_: object) -> None:
        """One more call of the layer."""
        self.calls += 1

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.layer(self.masked(buffers))[:, 0])
        return {"out": buffers.out}

    def observe(self, buffers: Buffers, outputs: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        return torch.tensor(self.calls)


class CountsByDeviceHook(CountsByHook):
    mutates = ("counter",)

    def allocate(self, device: torch.device) -> Buffers:
        counter = torch.zeros((), dtype=torch.int32, device=device)
        self.counter = counter
        return Buffers(**dict(super().allocate(device).items()), counter=counter)

    def count(self, *_: object) -> None:
        self.counter.add_(1)

    def observe(self, buffers: Buffers, outputs: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
        return None


ZOO = [
    Entry("GC307", "doubles-unless-capturing", DoublesUnlessCapturing, DoublesAlways, "work is left out of a capture"),
    Entry("GC308", "counts-on-host", CountsOnHost, CountsOnDevice, "the region advances a position on the host"),
    Entry("GC309", "decays-number", DecaysNumber, DecaysTensor, "the learning rate is a Python number"),
    Entry("GC310", "sets-autocast", SetsAutocast, KeysByAutocast, "replays are served under another autocast mode"),
    Entry("GC313", "counts-by-hook", CountsByHook, CountsByDeviceHook, "a hook counts on the host"),
]
