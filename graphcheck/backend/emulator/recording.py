"""`EmulatedRecording`: one captured graph."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from graphcheck.backend.emulator import footprint, replay
from graphcheck.backend.emulator.capture import Birth, Capture
from graphcheck.backend.emulator.device import DEVICE
from graphcheck.backend.emulator.ledger import Ledger
from graphcheck.backend.emulator.memory import HEAP
from graphcheck.backend.emulator.ordering import ORDER
from graphcheck.backend.emulator.pinned import PINNED
from graphcheck.backend.emulator.streams import WIDEST, unjoined
from graphcheck.backend.emulator.tensor import DeviceTensor, of_block
from graphcheck.backend.protocol import Allocation, External, Operation, PoolUse
from graphcheck.errors import CaptureRefused, ReplayFailed
from graphcheck.finding import Finding, Severity


class EmulatedRecording:
    """What a capture leaves: the tape, its externals and its outputs.

    Args:
        capture: finished.
        outputs: what the region returned, by name; None where the caller keeps outputs to himself.

    Attributes:
        ordered: whether its replays count among those that must not overlap.
    """

    def __init__(self, capture: Capture, outputs: Mapping[str, torch.Tensor] | None) -> None:
        self.outputs: Mapping[str, torch.Tensor] = dict(outputs) if outputs is not None else {}
        self.pool = capture.pool
        self.nodes = capture.nodes
        self.generators = capture.generators
        self.ledger = Ledger(list(capture.touched.values()))
        self._blocks = [touch.block for touch in capture.touched.values() if touch.block.tag == "device"]
        self._sources = [
            touch.block for touch in capture.touched.values() if touch.block.tag == "pinned" and touch.reads
        ]
        self._peak = capture.peak
        self._findings = list(capture.findings)
        held = {tensor._handle.block for tensor in _tensors(outputs if outputs is not None else {})}
        if outputs is not None and any(not birth.freed and birth.block not in held for birth in capture.births):
            gc.collect()  # what only a reference cycle keeps alive does not escape
        self._allocations = [Allocation(birth.nbytes, _kind(birth, held), birth.where) for birth in capture.births]
        if outputs is not None:
            for birth in capture.births:
                if _kind(birth, held) == "escaping":
                    self._findings.append(_escaped(birth))
        self._steps: list[Any] | None = None
        self.closed = False
        self.ordered = True
        for birth in capture.births:
            birth.block.users += 1
        self._born = list(capture.births)
        capture.pool.watch = None

    def __del__(self) -> None:
        if HEAP is not None and hasattr(self, "_born"):  # not while the interpreter goes down
            self.close()

    def replay(self) -> None:
        """Run the graph once.

        Raises:
            ReplayFailed: an operation failed, or the graph was closed.
            CaptureRefused: the current stream is capturing.
        """
        if self.closed:
            raise ReplayFailed("the graph was reset; capture it again before replaying it")
        if DEVICE.capture is not None:
            DEVICE.refuse(
                "GC101", "a graph is replayed while a stream is capturing", "replay it before or after the capture"
            )
        replay.run(self.steps(), self.nodes)
        self.pool.replays += 1
        if self.ordered:
            ORDER.replay(self.pool, self._blocks, self._sources)

    def steps(self) -> list[Any]:
        """The calls, bound on first use."""
        if self._steps is None:
            with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch._C._InferenceMode(False):
                self._steps = replay.compiled(self.nodes)
        return self._steps

    def operations(self) -> Sequence[Operation]:
        return [node.operation() for node in self.nodes]

    def allocations(self) -> Sequence[Allocation]:
        return list(self._allocations)

    def peak_pool_bytes(self) -> int:
        return self._peak

    def externals(self) -> Sequence[External]:
        return [
            External(touch.block.address, touch.nbytes, touch.block.tag, touch.reads, touch.writes, touch.where)
            for touch in self.ledger.touched
        ]

    def findings(self) -> Sequence[Finding]:
        return list(self._findings)

    def name(self, names: Mapping[str, torch.Tensor]) -> None:
        self.ledger.name(names)

    def objections(self, names: Mapping[str, torch.Tensor]) -> Sequence[Finding]:
        found = self.ledger.objections(names)
        return [*found, *ORDER.objections(self.pool, self._blocks, self.ledger.title)]

    def undeclared_writes(self, declared: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        covered = {tensor._handle.block for tensor in declared if isinstance(tensor, DeviceTensor)}
        found: list[torch.Tensor] = []
        for touch in self.ledger.touched:
            block = touch.block
            if touch.writes and block.tag == "device" and block not in covered and not touch_died(touch):
                found.append(of_block(block, torch.uint8, (block.nbytes,), (1,)))
        return found

    def pool_uses(self) -> Sequence[PoolUse]:
        return footprint.pool_uses(self.nodes, self.pool)

    def elements_read(self, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        return footprint.elements_read(self.nodes, tensors)

    def close(self) -> None:
        """Drop the graph; its memory may be reused."""
        if self.closed:
            return
        self.closed = True
        self.outputs = {}
        self._steps = None
        for touch in self.ledger.touched:
            block = touch.block
            block.users -= 1
            if block.users == 0:
                if block.tag == "pinned":
                    PINNED.forget(block)
                elif block.pool is None:
                    HEAP.forget(block)
        for birth in self._born:
            birth.block.users -= 1
            if not birth.freed:
                birth.block.bereft = birth.generation
        self._born = []


def touch_died(touch: Any) -> bool:
    """Whether the owner of an external block is gone."""
    return not touch.block.alive or touch.block.generation != touch.generation


def finish(capture: Capture, outputs: Mapping[str, torch.Tensor] | None) -> EmulatedRecording:
    """End a capture; the recording, or the first refusal, swallowed or not."""
    if capture.refusal is None:
        loose = unjoined(capture)
        if loose:
            capture.refusal = CaptureRefused(
                "GC202",
                f"{len(loose)} forked stream{'s' if len(loose) > 1 else ''} with captured work did not join before the "
                "capture ended",
                "let the capturing stream wait for every fork before the region ends (cur.wait_stream(side))",
                next((node.where for node in reversed(capture.nodes) if node.where is not None), None),
            )
    if capture.refusal is not None:
        abandon(capture)
        raise capture.refusal
    if len(capture.streams) > WIDEST:
        capture.findings.append(_fan_out(capture))
    return EmulatedRecording(capture, outputs)


def _fan_out(capture: Capture) -> Finding:
    return Finding(
        code="GC207",
        message=f"the region spreads over {len(capture.streams)} streams",
        severity=Severity.WARNING,
        where=next((node.where for node in capture.nodes if node.where is not None), None),
        place="capture",
        expected=f"at most {WIDEST} streams, the hardware queues that a process has by default",
        got=f"{len(capture.streams)} streams for {len(capture.nodes)} operations",
        advice="reuse one side stream, and record the main branch before the side branch",
    )


def abandon(capture: Capture) -> None:
    """Forget a capture that failed."""
    capture.pool.watch = None
    for touch in capture.touched.values():
        touch.block.users -= 1
        if touch.block.users == 0 and touch.block.pool is None and touch.block.tag == "device":
            HEAP.forget(touch.block)
    capture.touched.clear()
    capture.nodes.clear()


def _tensors(outputs: Any) -> list[DeviceTensor]:
    if isinstance(outputs, DeviceTensor):
        return [outputs]
    if isinstance(outputs, Mapping):
        return [tensor for item in outputs.values() for tensor in _tensors(item)]
    if isinstance(outputs, (list, tuple)):
        return [tensor for item in outputs for tensor in _tensors(item)]
    return []


def _kind(birth: Birth, held: set[Any]) -> str:
    if birth.freed:
        return "transient"
    return "output" if birth.block in held else "escaping"


def _escaped(birth: Birth) -> Finding:
    return Finding(
        code="GC405",
        message=f"{birth.nbytes} bytes allocated inside the capture are still alive after it and are no output",
        where=birth.where,
        place="capture",
        expected="every tensor born in the capture freed or returned when the region ends",
        got=birth.where.source if birth.where is not None else "",
        advice="create it before the capture and pass it in: its block belongs to the graph's pool",
    )
