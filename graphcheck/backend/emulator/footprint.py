"""Footprints: which bytes of which blocks a tape reads and writes, and which bytes eager code writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from graphcheck.backend.emulator.device import DEVICE
from graphcheck.backend.emulator.memory import Block
from graphcheck.backend.emulator.tape import Node, Ref
from graphcheck.backend.emulator.tensor import DeviceTensor
from graphcheck.backend.protocol import PoolUse
from graphcheck.finding import Location

# Write their first argument without regard for what it holds.
_OVERWRITE = frozenset(
    {"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_"}
)


@dataclass(frozen=True)
class Access:
    """One tensor argument of one recorded operation.

    Args:
        ref: the argument.
        writes: whether the operation writes it, after all that it reads.
        where: the user's line.
    """

    ref: Ref
    writes: bool
    where: Location | None


def accesses(nodes: Sequence[Node]) -> Iterator[Access]:
    """Every access of a tape in order, the reads of an operation before its writes."""
    for node in nodes:
        written = {argument.name: argument for argument in node.func._schema.arguments if _is_written(argument)}
        writes: list[Ref] = list(_refs(node.outs))
        for name, value in [*zip(node.names, node.args, strict=False), *node.kwargs.items()]:
            target = written.get(name)
            if target is None or not (target.is_out or node.func.overloadpacket.__name__ in _OVERWRITE):
                yield from (Access(ref, False, node.where) for ref in _refs(value))
            if target is not None:
                writes += _refs(value)
        yield from (Access(ref, True, node.where) for ref in writes)


def _is_written(argument: Any) -> bool:
    return bool(argument.alias_info is not None and argument.alias_info.is_write)


def _refs(value: Any) -> Iterator[Ref]:
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _refs(item)


class Bytes:
    """Marks on the bytes of blocks.

    Args:
        tensors: only the blocks under these device tensors are of interest; None: every block.
    """

    def __init__(self, tensors: Iterable[torch.Tensor] | None = None) -> None:
        self._marks: dict[Block, torch.Tensor] = {}
        self._wanted = None
        if tensors is not None:
            self._wanted = {tensor._handle.block for tensor in tensors if isinstance(tensor, DeviceTensor)}

    def wants(self, block: Block) -> bool:
        """Whether the block is of interest."""
        return self._wanted is None or block in self._wanted

    def mark(self, block: Block, tensor: torch.Tensor | Ref) -> None:
        """Mark the bytes of a raw view (or of its description) of the block."""
        view = self._view(block, tensor)
        for dimension, step in enumerate(view.stride()):
            if step == 0 and view.shape[dimension] > 1:
                view = view.narrow(dimension, 0, 1)
        view.fill_(True)

    def all(self, block: Block, tensor: torch.Tensor | Ref) -> bool:
        """Whether every byte of the view is marked."""
        return bool(self._view(block, tensor).all())

    def elements(self, block: Block, tensor: torch.Tensor | Ref) -> torch.Tensor:
        """The elements of the view with a marked byte, boolean, of the view's shape."""
        return self._view(block, tensor).any(-1)

    def _view(self, block: Block, tensor: torch.Tensor | Ref) -> torch.Tensor:
        if block not in self._marks:
            self._marks[block] = torch.zeros(max(block.capacity, block.nbytes), dtype=torch.bool)
        if isinstance(tensor, Ref):
            size, stride, offset = tensor.size, tensor.stride, tensor.offset
        else:
            size, stride, offset = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
        width = tensor.dtype.itemsize
        return self._marks[block].as_strided(
            (*size, width), (*(step * width for step in stride), 1), int(offset) * width
        )


def pool_uses(nodes: Sequence[Node], pool: Any) -> list[PoolUse]:
    """What a tape does with each block of its pool, in the order of first use."""
    written = Bytes()
    first: dict[Block, Access] = {}
    reads: dict[Block, Location | None] = {}
    writes: dict[Block, Location | None] = {}
    with _raw():
        for access in accesses(nodes):
            block = access.ref.block
            if block.pool is not pool or 0 in access.ref.size:
                continue
            first.setdefault(block, access)
            if access.writes:
                written.mark(block, access.ref)
                writes.setdefault(block, access.where)
            elif not written.all(block, access.ref):
                reads.setdefault(block, access.where)
    return [
        PoolUse(
            address=block.address,
            nbytes=block.capacity,
            reads=block in reads,
            writes=block in writes,
            reader=reads.get(block),
            writer=writes.get(block),
        )
        for block in first
    ]


def elements_read(nodes: Sequence[Node], tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """For each named device tensor, the elements that a tape reads before it wrote them, as a boolean CPU tensor."""
    written, read = Bytes(tensors.values()), Bytes()
    with _raw():
        for access in accesses(nodes):
            block = access.ref.block
            if not written.wants(block):
                continue
            if access.writes:
                written.mark(block, access.ref)
            elif not written.all(block, access.ref):
                read.mark(block, access.ref)
        return _by_name(read, tensors)


def elements_written(
    action: Callable[[], object], tensors: Mapping[str, torch.Tensor]
) -> tuple[object, dict[str, torch.Tensor]]:
    """Carry out ``action``; its result, and for each named device tensor the elements that it wrote."""
    written = Bytes(tensors.values())

    def observe(rule: Any, targets: list[DeviceTensor], result: Any) -> None:
        with _raw():
            for tensor in targets:
                if written.wants(tensor._handle.block):
                    written.mark(tensor._handle.block, tensor._raw)

    saved, DEVICE.observer = DEVICE.observer, observe
    try:
        result = action()
    finally:
        DEVICE.observer = saved
    with _raw():
        return result, _by_name(written, tensors)


def _by_name(marked: Bytes, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        name: marked.elements(tensor._handle.block, tensor._raw)
        for name, tensor in tensors.items()
        if isinstance(tensor, DeviceTensor) and tensor.numel()
    }


@contextmanager
def _raw() -> Iterator[None]:
    """Marks are plain CPU tensors: no mode may see them."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield
