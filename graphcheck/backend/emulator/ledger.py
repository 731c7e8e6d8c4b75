"""The address ledger: which name owns each external address, and what became of it."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from graphcheck.backend.emulator.capture import Touch
from graphcheck.backend.emulator.memory import Block
from graphcheck.backend.emulator.pinned import PINNED
from graphcheck.backend.emulator.tensor import DeviceTensor
from graphcheck.finding import Finding

_COPY = "copy into the tensor that was captured (copy_), or capture again"


class Owner:
    """A name and the tensor object that it held right after the capture."""

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self.name = name
        self.tensor: Any = weakref.ref(tensor)
        self.nbytes = tensor.numel() * tensor.element_size()


class Ledger:
    """External addresses of one graph.

    Args:
        touched: the external blocks that the graph reads or writes.
    """

    def __init__(self, touched: Sequence[Touch]) -> None:
        self.touched = list(touched)
        self.owners: dict[Block, list[Owner]] = {}

    def name(self, names: Mapping[str, torch.Tensor]) -> None:
        """Remember who owns each external address."""
        wanted = {touch.block for touch in self.touched}
        for name, tensor in names.items():
            block = block_of(tensor)
            if block is not None and block in wanted:
                self.owners.setdefault(block, []).append(Owner(name, tensor))

    def title(self, block: Block) -> str:
        """How to call an external block: by its owner, else by its address."""
        owners = self.owners.get(block)
        return owners[0].name if owners else f"the memory at {block.address:#x}"

    def objections(self, names: Mapping[str, torch.Tensor]) -> list[Finding]:
        """What speaks against a replay now."""
        found: list[Finding] = []
        for touch in self.touched:
            owners = self.owners.get(touch.block, [])
            moved = [finding for owner in owners if (finding := _moved(touch, owner, names)) is not None]
            found += moved
            died = not touch.block.alive or touch.block.generation != touch.generation
            if died and not moved:
                found.append(_died(touch))
            elif touch.block.null and not moved:
                found.append(_null(touch))
        return found


def block_of(tensor: torch.Tensor) -> Block | None:
    """The block under a device or pinned tensor."""
    if isinstance(tensor, DeviceTensor):
        return tensor._handle.block
    if tensor.device.type == "cpu" and tensor.layout is torch.strided:
        return PINNED.find(tensor)
    return None


def _moved(touch: Touch, owner: Owner, names: Mapping[str, torch.Tensor]) -> Finding | None:
    now = names.get(owner.name)
    if now is None:
        return None
    block = block_of(now)
    if block is touch.block and block.generation == touch.generation:
        return None
    nbytes = now.numel() * now.element_size()
    same = owner.tensor() is now
    if nbytes > owner.nbytes:
        code, what = "GC404", f"grew from {owner.nbytes} to {nbytes} bytes and lies elsewhere"
        advice = "size it for the largest case before the first capture"
    elif same:
        code, what, advice = "GC403", "was moved to other memory (.data =, set_, resize_)", _COPY
    else:
        code, what, advice = "GC401", "was rebound to another tensor", _COPY
    return Finding(
        code=code,
        message=f"{owner.name} {what} after the capture; the graph keeps the old address",
        where=touch.where,
        place=owner.name,
        expected=f"address {touch.block.address:#x}",
        got=f"address {now.data_ptr():#x}",
        advice=advice,
    )


def _died(touch: Touch) -> Finding:
    if touch.writes and touch.block.bereft == touch.generation:
        return _evicted(touch)
    host = touch.block.tag != "device"
    use = "writes" if touch.writes and not touch.reads else "reads"
    return Finding(
        code="GC407" if host else "GC402",
        message=(
            f"the {touch.block.tag} memory that the graph {use} ({touch.nbytes} bytes at {touch.block.address:#x}) was "
            "freed after the capture"
        ),
        where=touch.where,
        expected="its owner alive as long as the graph",
        got="no owner",
        advice="keep the tensor with the graph"
        if not host
        else "keep the host buffer with the graph, or copy before it",
    )


def _evicted(touch: Touch) -> Finding:
    return Finding(
        code="GC411",
        message=(
            f"the workspace that the graph uses ({touch.nbytes} bytes at {touch.block.address:#x}) was allocated by the "
            "capture of another graph, and freed when that graph was dropped"
        ),
        where=touch.where,
        expected="a workspace that outlives every graph that uses it",
        got="no owner",
        advice="allocate the workspace before the first capture and keep it, or drop all graphs of the pool together",
    )


def _null(touch: Touch) -> Finding:
    return Finding(
        code="GC410",
        message=f"the storage at {touch.block.address:#x}, which the graph uses, was given away: its address is null",
        where=touch.where,
        expected=f"address {touch.block.address:#x}",
        got="a null address",
        advice="dispose of it after the graph",
    )
