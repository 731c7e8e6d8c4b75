"""Replay and eager run side by side: the first operation whose result differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from graphcheck.backend.emulator import replay
from graphcheck.backend.emulator.device import DEVICE
from graphcheck.backend.emulator.generator import GENERATORS
from graphcheck.backend.emulator.recording import EmulatedRecording
from graphcheck.backend.emulator.tape import Node, Ref
from graphcheck.backend.emulator.tensor import DeviceTensor


def first_difference(recording: EmulatedRecording, region: Callable[[], object]) -> str | None:
    """Run the tape and the region from the same state and compare what each operation wrote, bit for bit."""
    saved = [
        (touch.block, touch.block.bytes().clone())
        for touch in recording.ledger.touched
        if touch.block.backing is not None
    ]
    random = GENERATORS.get_state()
    results: list[list[torch.Tensor]] = []
    for node, step in zip(recording.nodes, recording.steps(), strict=True):
        replay.run([step], [node])
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            results.append([ref.build().clone() for ref in _written(node)])
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        for block, content in saved:
            block.bytes().copy_(content)
    GENERATORS.set_state(random)
    return _against_eager(recording.nodes, results, region)


def _against_eager(nodes: list[Node], results: list[list[torch.Tensor]], region: Callable[[], object]) -> str | None:
    found: list[str] = []
    position = 0

    def observe(rule: Any, written: list[DeviceTensor], result: Any) -> None:
        nonlocal position
        if found or position < 0 or position >= len(nodes):
            return
        node = nodes[position]
        if node.func is not rule.func:
            position = -1
            return
        eager = [*(tensor._raw for tensor in written), *(t._raw for t in _flat(result) if not _among(t, written))]
        for mine, theirs in zip(results[position], eager, strict=False):
            if mine.shape != theirs.shape or not _same(mine, theirs):
                found.append(f"operation {position}, {node.func}, recorded at {node.where}")
                break
        position += 1

    before, DEVICE.observer = DEVICE.observer, observe
    try:
        region()
    finally:
        DEVICE.observer = before
    return found[0] if found else None


def _same(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        left, right = mine.contiguous(), theirs.contiguous()
        return torch.equal(left.view(-1).view(torch.uint8), right.view(-1).view(torch.uint8))


def _flat(result: Any) -> list[DeviceTensor]:
    if type(result) is DeviceTensor:
        return [result]
    if isinstance(result, (list, tuple)):
        return [tensor for item in result for tensor in _flat(item)]
    return []


def _among(tensor: DeviceTensor, others: list[DeviceTensor]) -> bool:
    return any(tensor is other for other in others)


def _written(node: Node) -> list[Ref]:
    """The tensors that a node writes: its results, or its written arguments in the order of the schema."""
    if node.outs is not None:
        return [ref for ref in replay._flat(node.outs) if ref is not None]
    names = [a.name for a in node.func._schema.arguments if a.alias_info and a.alias_info.is_write]
    given = {**dict(zip(node.names, node.args, strict=False)), **node.kwargs}
    return [ref for name in names for ref in replay._flat(given.get(name)) if isinstance(ref, Ref)]
