"""Blocks of device memory: virtual addresses, guard bands, poison, and who keeps them alive."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch

from graphcheck.finding import Location
from graphcheck.poison import PATTERN as POISON

ALIGNMENT = 512
GUARD = 0x5CA7
_FIRST_ADDRESS = 0x7F0000000000


def rounded(nbytes: Any) -> int:
    """``nbytes`` rounded up to whole alignment units, at least one."""
    return int(max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT))


class Block:
    """One allocation.

    Args:
        address: virtual for device memory, real for host memory.
        nbytes: what was asked for.
        tag: ``"device"`` or ``"pinned"``.
        pool: the private pool it belongs to, None for the eager heap.
        backing: a CPU tensor whose storage is the block's memory; None once freed and wanted by no graph.
        arena: the memory with its guard bands around it, where it has any.
        where: the user's line that allocated it, inside a capture.

    Attributes:
        generation: counts how often the memory was handed out.
        users: the number of live graphs that hold its address.
        handle: weak reference to what keeps the allocation alive.
        null: whether the owner gave its memory away while views of it live on.
        bereft: the generation that a graph left behind in its pool and that was alive when the graph was dropped.
    """

    __slots__ = (
        "address",
        "alive",
        "arena",
        "backing",
        "bereft",
        "capacity",
        "generation",
        "handle",
        "nbytes",
        "null",
        "poisoned_at",
        "pool",
        "tag",
        "users",
        "where",
    )

    def __init__(
        self,
        address: int,
        nbytes: int,
        tag: str,
        pool: Any,
        backing: torch.Tensor | None,
        arena: Any = None,
        where: Location | None = None,
    ) -> None:
        self.address = address
        self.nbytes = nbytes
        self.capacity = rounded(nbytes)
        self.tag = tag
        self.pool = pool
        self.backing = backing
        self.arena = arena
        self.where = where
        self.generation = 0
        self.users = 0
        self.alive = True
        self.null = False
        self.bereft = -1
        self.poisoned_at = -1
        self.handle: weakref.ref[Handle] | None = None

    def view(self, dtype: torch.dtype, size: Any, stride: Any, offset: Any) -> torch.Tensor:
        """A raw CPU tensor over the block's memory; ``offset`` in elements of ``dtype``."""
        if self.backing is None:
            raise RuntimeError(f"the memory of block {self.address:#x} is gone")
        return torch.empty(0, dtype=dtype).set_(self.backing.untyped_storage(), offset, size, stride)

    def bytes(self) -> torch.Tensor:
        """The whole allocation as raw bytes."""
        return self.view(torch.uint8, (self.nbytes,), (1,), 0)

    def poison(self) -> None:
        """Fill the memory with poison."""
        if self.backing is None:
            return
        nbytes = self.backing.untyped_storage().nbytes()
        if nbytes >= 2:
            self.view(torch.int16, (nbytes // 2,), (1,), 0).fill_(POISON)
        if nbytes % 2:
            self.view(torch.uint8, (1,), (1,), nbytes - 1).fill_(POISON >> 8)

    def guards(self) -> list[Any]:
        """The guard bands before and after the block, as arrays of bytes."""
        if self.arena is None:
            return []
        before, after = self.arena
        return [before, after]

    def damaged(self) -> bool:
        """Whether a guard band lost its pattern; it is written again."""
        hurt = False
        for band in self.guards():
            words = band.view(np.uint16)
            if not (words == GUARD).all():
                hurt = True
                words.fill(GUARD)
        return hurt


class Handle:
    """What keeps one allocation alive: every wrapper that views it shares it; the block is freed when it dies."""

    __slots__ = ("__weakref__", "block")

    def __init__(self, block: Block) -> None:
        self.block = block
        block.handle = weakref.ref(self)

    def __del__(self) -> None:
        block = self.block
        if HEAP is None:  # the interpreter is going down
            return
        if block.pool is None:
            HEAP.free(block)
        else:
            block.pool.free(block)


def arena(nbytes: int) -> tuple[torch.Tensor, tuple[Any, Any]]:
    """Aligned memory of exactly ``nbytes`` bytes as a uint8 tensor, and the guard bands around it."""
    whole = np.empty(nbytes + 4 * ALIGNMENT, dtype=np.uint8)
    start = ALIGNMENT + (-(whole.ctypes.data + ALIGNMENT)) % ALIGNMENT
    end = start + nbytes + nbytes % 2
    before, after = whole[start - ALIGNMENT : start], whole[end : end + ALIGNMENT]
    before.view(np.uint16).fill(GUARD)
    after.view(np.uint16).fill(GUARD)
    inner = whole[start : start + nbytes]
    backing = torch.from_numpy(inner) if nbytes else torch.empty(0, dtype=torch.uint8)
    return backing, (before, after)


class Heap:
    """The eager allocator.

    Addresses only grow, so a stale address never names a younger block by accident; the exception is on purpose:
    a freed block that a live graph still refers to is handed out again first, so that use after free shows.
    """

    def __init__(self) -> None:
        self.next = _FIRST_ADDRESS
        self.live: set[Block] = set()
        self.retained: dict[int, list[Block]] = {}
        self.allocated = 0
        self.peak = 0

    def restart(self) -> None:
        """Give out the same addresses again, so that a run repeats; blocks are told apart by identity."""
        self.next = _FIRST_ADDRESS

    def reserve(self, nbytes: int) -> int:
        """A fresh address for ``nbytes`` bytes and a guard unit."""
        address = self.next
        self.next += rounded(nbytes) + 2 * ALIGNMENT
        return address

    def _enter(self, block: Block) -> Block:
        self.live.add(block)
        self.allocated += block.capacity
        self.peak = max(self.peak, self.allocated)
        return block

    def allocate(self, nbytes: Any) -> Block:
        """A poisoned block between guard bands."""
        block = self._recycled(nbytes)
        if block is None:
            backing, bands = arena(nbytes)
            block = self._enter(Block(self.reserve(nbytes), nbytes, "device", None, backing, bands))
        block.poison()
        return block

    def adopt(self, raw: torch.Tensor) -> tuple[Block, torch.Tensor]:
        """A block for what an operator returned, without a copy where no graph waits for a block of that size."""
        nbytes = raw.untyped_storage().nbytes()
        if self.retained:
            block = self._recycled(nbytes)
            if block is not None:
                view = block.view(raw.dtype, raw.shape, raw.stride(), raw.storage_offset())
                view.copy_(raw)
                return block, view
        return self._enter(Block(self.reserve(nbytes), nbytes, "device", None, raw)), raw

    def _recycled(self, nbytes: int) -> Block | None:
        candidates = self.retained.get(rounded(nbytes)) if self.retained else None
        for position in range(len(candidates) - 1, -1, -1) if candidates else ():
            block = candidates[position]  # type: ignore[index]
            if block.backing is not None and block.backing.untyped_storage().nbytes() >= nbytes:
                del candidates[position]  # type: ignore[union-attr]
                block.alive = True
                block.generation += 1
                block.nbytes = nbytes
                block.null = False
                return self._enter(block)
        return None

    def free(self, block: Block) -> None:
        """The last owner is gone. The memory stays only for live graphs, poisoned."""
        block.alive = False
        self.live.discard(block)
        self.allocated -= block.capacity
        if block.users:
            block.poison()
            self.retained.setdefault(rounded(block.nbytes), []).append(block)
        else:
            block.backing = block.arena = None

    def forget(self, block: Block) -> None:
        """No graph refers to ``block`` any more."""
        if block.alive:
            return
        for candidates in self.retained.values():
            if block in candidates:
                candidates.remove(block)
        block.backing = block.arena = None


class Pool:
    """A graph's private pool: freed blocks are handed out again to the same and to later captures."""

    def __init__(self, ident: tuple[int, int]) -> None:
        self.ident = ident
        self.vacant: list[Block] = []
        self.replays = 0
        self.alive = 0
        self.watch: Any = None

    def allocate(self, nbytes: Any, where: Location | None) -> Block:
        """The smallest free block that is large enough, the last freed first; a new one where there is none."""
        best = -1
        for position in range(len(self.vacant) - 1, -1, -1):
            block = self.vacant[position]
            if block.capacity >= nbytes and (best < 0 or block.capacity < self.vacant[best].capacity):
                best = position
        if best >= 0:
            block = self.vacant.pop(best)
            block.generation += 1
            block.alive = True
            block.null = False
            block.nbytes = nbytes
        else:
            backing, bands = arena(rounded(nbytes))
            block = Block(HEAP.reserve(nbytes), nbytes, "device", self, backing, bands)
        block.where = where
        if block.poisoned_at != self.replays:
            block.poison()
            block.poisoned_at = self.replays
        self.alive += block.capacity
        return block

    def free(self, block: Block) -> None:
        """Give the block back to the pool."""
        block.alive = False
        self.alive -= block.capacity
        if block.poisoned_at != self.replays:
            block.poison()
            block.poisoned_at = self.replays
        self.vacant.append(block)
        if self.watch is not None:
            self.watch(block)


HEAP = Heap()
