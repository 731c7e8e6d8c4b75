"""Guard bands on hardware: a component's buffers lie in a memory pool of their own, whose unused bytes hold a pattern."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from graphcheck.backend.cuda.features import features
from graphcheck.finding import Finding

_PATTERN = 0xA5
# Of a large gap only its two ends are watched: a write past a buffer lands there.
_REACH = 4096


@dataclass(frozen=True)
class Band:
    """Unused bytes of the pool.

    Args:
        start, nbytes: where it lies.
        before: address of the buffer in front of it; 0 if there is none.
    """

    start: int
    nbytes: int
    before: int


@lru_cache(maxsize=1)
def _pool() -> Any:
    """One pool for the life of the process: a pool must not die while a capture or another pool is open, and Python
    does not say when it drops one."""
    return torch.cuda.MemPool()


class Guards:
    """The pool that component buffers come from, and its bands.

    A band is rounding slack behind a block, or a free block between two. Bands are found again after each allocation;
    between, nothing else allocates from the pool.
    """

    def __init__(self) -> None:
        self._pool = _pool() if features().raw_storage else None
        self._bands: list[tuple[Band, torch.Tensor]] = []
        self._found: list[Finding] = []

    @contextmanager
    def allocating(self) -> Iterator[None]:
        """Inside, device memory comes from the pool; afterwards every band of it holds the pattern."""
        if self._pool is None:
            yield
            return
        self._found += self._look()
        with torch.cuda.use_mem_pool(self._pool):
            yield
        self._bands = [(band, _tensor(band)) for band in bands(self._pool.snapshot())]
        for _, tensor in self._bands:
            tensor.fill_(_PATTERN)

    def forget(self) -> None:
        """Drop what an earlier plan left."""
        self._bands, self._found = [], []

    def damaged(self) -> list[Finding]:
        """A finding for each band that lost its pattern since the last call; it is rewritten. One host read."""
        found, self._found = [*self._found, *self._look()], []
        return found

    def _look(self) -> list[Finding]:
        if not self._bands:
            return []
        flags = torch.stack([(tensor != _PATTERN).any() for _, tensor in self._bands])
        if not bool(flags.any()):
            return []
        found = []
        for (band, tensor), damaged in zip(self._bands, flags.tolist(), strict=True):
            if damaged:
                first = int((tensor != _PATTERN).to(torch.uint8).argmax())
                found.append(_finding(band, first))
                tensor.fill_(_PATTERN)
        return found


def bands(segments: list[Mapping[str, Any]]) -> list[Band]:
    """The unused bytes of a pool's segments: slack behind blocks in use, and the ends of free blocks."""
    found: list[Band] = []
    for segment in segments:
        address, before = segment["address"], 0
        for block in segment["blocks"]:
            start = block.get("address", address)
            end = start + block["size"]
            if block["state"] == "active_allocated":
                before = start
                slack = start + block["requested_size"]
                if slack < end:
                    found.append(Band(slack, end - slack, before))
            elif block["state"] == "inactive":
                found.append(Band(start, min(_REACH, end - start), before))
                if end - start > _REACH:
                    reach = min(_REACH, end - start - _REACH)
                    found.append(Band(end - reach, reach, before))
            address = end
    return found


def _tensor(band: Band) -> torch.Tensor:
    """The bytes of a band, not owned."""
    device = torch.device("cuda", torch.cuda.current_device())
    storage = torch._C._construct_storage_from_data_pointer(band.start, device, band.nbytes)
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


def _finding(band: Band, first: int) -> Finding:
    behind = f"behind the buffer at 0x{band.before:x}" if band.before else "in front of the first buffer"
    return Finding(
        code="GC962",
        message=f"something writes outside every buffer: byte {first} of a guard band {behind}",
        place=f"0x{band.start + first:x}",
        expected=f"the guard pattern 0x{_PATTERN:02x}",
        got="other bits",
        advice="check the kernel's bounds: it writes past the end of a buffer",
    )
