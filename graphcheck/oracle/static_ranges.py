"""Static inputs by ranges: what the graphs read of them against what staging ever writes."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial

import torch

from graphcheck.backend.protocol import Backend
from graphcheck.cases import Case
from graphcheck.component import Component
from graphcheck.errors import CaptureRefused
from graphcheck.finding import Finding, Severity
from graphcheck.oracle.arm import Arm, storage_key
from graphcheck.poison import poisoned
from graphcheck.watch import context

_MOST_GRAPHS = 3
_MOST_CASES = 16


@dataclass
class _Ranges:
    """Elements of one static input, boolean: those that some graph reads, those that some staging wrote."""

    read: torch.Tensor
    written: torch.Tensor


def never_staged(component: Component, backend: Backend, cases: list[Case]) -> list[Finding]:
    """Findings for what graphs read of static inputs and no staging of the campaign wrote.

    A warning where that still holds what allocation left there uninitialised: the answer then hangs on how the region
    masks it. One note for the rest, which is right for constants. Nothing where the backend sees no ranges, or where
    the component refuses to be captured.

    Args:
        component: never allocated.
        backend: not active.
        cases: those of the campaign.
    """
    with backend.active(), context.preserved():
        arm = Arm(component, backend)
        try:
            ranges = _ranges(component, arm, cases[:_MOST_CASES])
        except CaptureRefused:
            return []
        warnings, constants = [], []
        for name, each in ranges.items():
            left = each.read & ~each.written
            if not bool(left.any()):
                continue
            unwritten = left & poisoned(arm.buffers[name]).cpu()
            if bool(unwritten.any()):
                warnings.append(_unwritten(name, int(unwritten.sum()), unwritten.numel()))
            else:
                constants.append(f"{name} ({int(left.sum())} of {left.numel()} elements)")
    if not constants:
        return warnings
    note = Finding(
        code="GC704",
        message=f"read by the graphs and written by no staging: {', '.join(constants)}",
        severity=Severity.NOTE,
        expected="constants, or every element that is read staged before each replay",
        got="only what allocate() put there",
        advice="nothing where these are constants; otherwise write them in stage()",
    )
    return [*warnings, note]


def _ranges(component: Component, arm: Arm, cases: list[Case]) -> dict[str, _Ranges]:
    """By name, what the graphs of the first keys read of each static input, and what staging ``arm`` wrote there."""
    inputs = _inputs(arm)
    ranges = {
        name: _Ranges(*(torch.zeros(tensor.shape, dtype=torch.bool) for _ in range(2)))
        for name, tensor in inputs.items()
    }
    seen: set[Hashable] = set()
    for case in cases:
        refusal, written = arm.backend.elements_written(partial(arm.stage, case), inputs)
        if written is None:
            return {}
        for name, elements in written.items():
            ranges[name].written |= elements
        key = arm.key(case)
        if refusal is None and key not in seen and len(seen) < _MOST_GRAPHS:
            seen.add(key)
            read = _read(Arm(component, arm.backend), case)
            # What holds an output of some graph is no input.
            ranges = {name: each for name, each in ranges.items() if name in read}
            inputs = {name: inputs[name] for name in ranges}
            for name, each in ranges.items():
                each.read |= read[name]
    return ranges if seen else {}


def _inputs(arm: Arm) -> dict[str, torch.Tensor]:
    """Device buffers that are neither state nor scratch."""
    apart = (*arm.component.mutates, *arm.component.scratch)
    return {name: tensor for name, tensor in arm.on_device().items() if name not in apart and tensor.numel()}


def _read(arm: Arm, case: Case) -> dict[str, torch.Tensor]:
    """What the graph that a fresh arm captures at a case reads of each buffer that is a static input to it."""
    arm.stage(case)
    for _ in range(arm.component.warmup):
        with arm.component.around_warmup(arm.buffers):
            arm.run()
        arm.stage(case)
    recording = arm.record(arm.backend.pool())
    held = {storage_key(tensor) for tensor in recording.outputs.values()}
    inputs = {name: tensor for name, tensor in _inputs(arm).items() if storage_key(tensor) not in held}
    read = dict(recording.elements_read(inputs) or {})
    recording.close()
    return read


def _unwritten(name: str, count: int, total: int) -> Finding:
    return Finding(
        code="GC704",
        message=f"the graphs read {count} of {total} elements of {name} that neither allocate() nor any stage() wrote",
        severity=Severity.WARNING,
        place=name,
        expected="every element that a graph reads written before the first replay",
        got="uninitialised memory",
        advice="fill the buffer with a neutral value in allocate(), or stage all that the graph reads",
    )
