"""Work that escapes the capture, forks that do not join, and events and orders that a graph does not keep."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from graphcheck.cases import Case
from graphcheck.component import Buffers
from graphcheck.finding import Severity
from graphcheck.zoo import Entry
from graphcheck.zoo.rows import MaskedSum, WithoutReference


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


class WaitsForUnforked(LaunchesElsewhere):
    """The side stream is waited for, but it never waited for the capturing one."""

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        outputs = super().run(buffers)
        torch.cuda.current_stream().wait_stream(self.side)
        return outputs


class ForgetsToJoin(LaunchesElsewhere):
    """The side stream is forked and never joined."""

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        self.side.wait_stream(torch.cuda.current_stream())
        return super().run(buffers)


class WaitsForPrefetch(MaskedSum):
    """Staging runs on a prefetch stream, and the region waits for it."""

    def allocate(self, device: torch.device) -> Buffers:
        self.prefetch = torch.cuda.Stream()
        self.ready = torch.cuda.Event()
        return super().allocate(device)

    def stage(self, buffers: Buffers, case: Case) -> None:
        self.prefetch.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.prefetch):
            super().stage(buffers, case)
            self.ready.record()

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        torch.cuda.current_stream().wait_event(self.ready)
        return super().run(buffers)


class WaitsBeforeCapture(WaitsForPrefetch):
    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        torch.cuda.current_stream().wait_event(self.ready)

    run = MaskedSum.run


class WorksOnLegacyStream(MaskedSum):
    """Half of the work is forked onto the legacy default stream, where autograd left its accumulators."""

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        side = self.side_stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            outputs = super().run(buffers)
        torch.cuda.current_stream().wait_stream(side)
        return outputs

    def side_stream(self) -> torch.cuda.Stream:
        """The stream that the work is forked onto."""
        return torch.cuda.default_stream()


class WorksOnOwnStream(WorksOnLegacyStream):
    def allocate(self, device: torch.device) -> Buffers:
        self.side = torch.cuda.Stream()
        return super().allocate(device)

    def side_stream(self) -> torch.cuda.Stream:
        return self.side


class AsksCapturedEvent(MaskedSum):
    """An event is recorded by the region, and the consumer asks it whether the step is done."""

    def allocate(self, device: torch.device) -> Buffers:
        self.done = torch.cuda.Event()
        return super().allocate(device)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        outputs = super().run(buffers)
        self.done.record()
        return outputs

    def observe(self, buffers: Buffers, outputs: Mapping[str, torch.Tensor]) -> None:
        self.done.query()


class RecordsAfterReplay(AsksCapturedEvent):
    run = MaskedSum.run

    def observe(self, buffers: Buffers, outputs: Mapping[str, torch.Tensor]) -> None:
        self.done.record()
        self.done.query()


class CopiesWithoutOrder(MaskedSum):
    """The input is copied into place on a stream of its own, and nothing lets the replay wait for it."""

    def allocate(self, device: torch.device) -> Buffers:
        self.copies = torch.cuda.Stream()
        return super().allocate(device)

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        incoming = buffers.x.clone()
        self.copies.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.copies):
            buffers.x.copy_(incoming)
        self.hand_over()

    def hand_over(self) -> None:
        """What the replay's stream does before the replay."""


class CopiesInOrder(CopiesWithoutOrder):
    def hand_over(self) -> None:
        torch.cuda.current_stream().wait_stream(self.copies)


class FansOut(MaskedSum):
    """One stream for every column group: a dozen branches of one small operation each."""

    branches = 12

    def allocate(self, device: torch.device) -> Buffers:
        self.sides = [torch.cuda.Stream() for _ in range(self.branches)]
        return super().allocate(device)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        rows, current = self.masked(buffers), torch.cuda.current_stream()
        parts = []
        for side, columns in zip(self.sides, rows.split(rows.shape[1] // 12, dim=1), strict=False):
            side.wait_stream(current)
            with torch.cuda.stream(side):
                parts.append(columns.sum(1))
        for side in self.sides:
            current.wait_stream(side)
        buffers.out.copy_(torch.stack(parts).sum(0))
        return {"out": buffers.out}

    reference = WithoutReference.reference


class ForksOnce(FansOut):
    branches = 1


ZOO = [
    Entry(
        "GC111",
        "works-on-legacy-stream",
        WorksOnLegacyStream,
        WorksOnOwnStream,
        "captured work goes through the legacy default stream",
    ),
    Entry(
        "GC201",
        "waits-for-unforked",
        WaitsForUnforked,
        ForksAndJoins,
        "a side stream is joined and never forked",
        backends=("emulator",),
        reason="the driver reports the join as a wait for work issued before the capture (GC203)",
    ),
    Entry("GC202", "forgets-to-join", ForgetsToJoin, ForksAndJoins, "a forked stream is not joined"),
    Entry("GC203", "waits-for-prefetch", WaitsForPrefetch, WaitsBeforeCapture, "the region waits for earlier work"),
    Entry("GC204", "launches-elsewhere", LaunchesElsewhere, ForksAndJoins, "work goes to a stream outside the capture"),
    Entry(
        "GC205",
        "asks-captured-event",
        AsksCapturedEvent,
        RecordsAfterReplay,
        "a captured event is asked outside",
        backends=("emulator",),
        reason="on CUDA the query raises in the consumer, outside any capture that could be blamed",
    ),
    Entry(
        "GC206",
        "copies-without-order",
        CopiesWithoutOrder,
        CopiesInOrder,
        "the replay does not wait for a copy on another stream",
        backends=("emulator",),
        reason="on hardware the copy has mostly finished, and nothing there keeps the order of streams",
    ),
    Entry(
        "GC207",
        "fans-out",
        FansOut,
        ForksOnce,
        "every small branch has a stream of its own",
        severity=Severity.WARNING,
        backends=("emulator",),
        reason="the CUDA backend sees the edges of the graph, not the streams they came from",
    ),
]
