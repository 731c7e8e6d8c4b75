"""Pinned host memory: which CPU storages are page-locked, and when their last owner dies."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from graphcheck.backend.emulator.memory import Block, arena, rounded


class Pinned:
    """The host allocator for page-locked memory.

    A block of which a live graph still holds the address is handed out again first, as a real host allocator does.
    """

    def __init__(self) -> None:
        self.live: dict[int, Block] = {}
        self.retained: list[Block] = []

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Page-locked memory as a uint8 CPU tensor of the caller's own."""
        block = self._recycled(nbytes)
        if block is None:
            backing, bands = arena(rounded(nbytes))
            block = Block(backing.data_ptr(), nbytes, "pinned", None, backing, bands)
        owned: Any = block.backing.numpy()[: max(nbytes, 1)]  # type: ignore[union-attr]
        # torch holds the array object until the storage dies, so a reference to it sees the death of the storage
        # without keeping it alive, and at once.
        weakref.finalize(owned, self._free, block, block.generation).atexit = False
        tensor = torch.from_numpy(owned)
        self.live[tensor.data_ptr()] = block
        return tensor

    def _recycled(self, nbytes: int) -> Block | None:
        for block in reversed(self.retained):
            if block.capacity == rounded(nbytes):
                self.retained.remove(block)
                block.generation += 1
                block.alive = True
                block.nbytes = nbytes
                return block
        return None

    def _free(self, block: Block, generation: int) -> None:
        if block.generation != generation or not block.alive:
            return
        block.alive = False
        self.live.pop(block.address, None)
        if block.users:
            block.poison()
            self.retained.append(block)

    def forget(self, block: Block) -> None:
        """No graph refers to ``block`` any more."""
        if block in self.retained:
            self.retained.remove(block)

    def find(self, tensor: torch.Tensor) -> Block | None:
        """The pinned block under a CPU tensor, None where it is pageable."""
        if not self.live:
            return None
        return self.live.get(tensor.untyped_storage().data_ptr())

    def empty(self, size: Any, dtype: torch.dtype, stride: Any = None) -> torch.Tensor:
        """An uninitialised pinned tensor."""
        size = torch.Size(size)
        strides = stride if stride is not None else torch.empty(size, device="meta").stride()
        extent = 1 + sum((n - 1) * s for n, s in zip(size, strides, strict=True)) if 0 not in size else 0
        itemsize = torch.empty(0, dtype=dtype, device="meta").element_size()
        memory = self.allocate(max(extent * itemsize, 1))
        return torch.empty(0, dtype=dtype).set_(memory.untyped_storage(), 0, size, strides)


PINNED = Pinned()
