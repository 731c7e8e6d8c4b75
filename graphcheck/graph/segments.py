"""What an address belongs to: a named buffer, the graph's pool, a library workspace, freed or foreign memory."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphcheck.graph.nodes import Node

_LARGEST_SMALL = 1 << 20

STATIC, POOL, WORKSPACE, FREED, FOREIGN = "static input", "graph pool", "library workspace", "freed", "foreign"


@dataclass(frozen=True)
class Span:
    """A range of device addresses with one owner.

    Args:
        start, nbytes: the range.
        owner: one of the classes above.
        name: the buffer's name, where it has one.
    """

    start: int
    nbytes: int
    owner: str
    name: str = ""

    @property
    def end(self) -> int:
        return self.start + self.nbytes


@dataclass(frozen=True)
class Word:
    """One 8-byte argument word that lies in known device memory.

    Args:
        node: index of the node.
        argument: index of the kernel parameter.
        offset: byte offset within it.
        address: the value.
        span: what it belongs to.
    """

    node: int
    argument: int
    offset: int
    address: int
    span: Span


class AddressMap:
    """Looks addresses up among spans; where spans nest (a named buffer inside an allocator's block), the first wins.

    Args:
        layers: groups of spans, most specific first; within a group spans do not overlap.
    """

    def __init__(self, layers: Iterable[Iterable[Span]]) -> None:
        self._layers = [sorted(layer, key=lambda span: span.start) for layer in layers]
        self._starts = [[span.start for span in layer] for layer in self._layers]

    def with_layer(self, spans: Sequence[Span]) -> AddressMap:
        """The same map with one more layer, more specific than all but the first."""
        return AddressMap([*self._layers[:1], spans, *self._layers[1:]])

    def find(self, address: int) -> Span | None:
        """The span that holds ``address``; None if no known memory does."""
        for layer, starts in zip(self._layers, self._starts, strict=True):
            index = bisect.bisect_right(starts, address) - 1
            if index >= 0 and address < layer[index].end:
                return layer[index]
        return None

    def words(self, nodes: Sequence[Node]) -> list[Word]:
        """Every aligned 8-byte word of every kernel argument that lies in known device memory."""
        places = argument_words(nodes)
        found: dict[int, Word] = {}
        values = np.array([value for *_, value in places], dtype=np.uint64)
        for layer, starts in zip(self._layers, self._starts, strict=True):
            if not layer or not len(values):
                continue
            before = np.searchsorted(np.array(starts, dtype=np.uint64), values, side="right").astype(np.int64) - 1
            ends = np.array([span.end for span in layer], dtype=np.uint64)
            for place in np.flatnonzero((before >= 0) & (values < ends[before])).tolist():
                if place not in found:
                    found[place] = Word(*places[place], layer[before[place]])
        return [found[place] for place in sorted(found)]


def argument_words(nodes: Sequence[Node]) -> list[tuple[int, int, int, int]]:
    """Node, argument, byte offset and value of every aligned 8-byte word of every kernel argument.

    The two ends of a copy, and the target of a memset, count as arguments 0 and 1.
    """
    found: list[tuple[int, int, int, int]] = []
    for node in nodes:
        for argument in node.arguments:
            found += [(node.index, argument.index, offset, value) for offset, value in argument.words()]
        if node.copy is not None:
            ends = (node.copy.source, node.copy.destination)
            found += [(node.index, number, 0, address) for number, address in enumerate(ends) if address]
    return found


def active_blocks(snapshot: Mapping[str, Any]) -> dict[int, int]:
    """Address and size of every block in use, of an allocator snapshot."""
    found: dict[int, int] = {}
    for segment in snapshot["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            start = block.get("address", address)
            if block["state"] == "active_allocated":
                found[start] = block["size"]
            address = start + block["size"]
    return found


def allocator_spans(snapshot: Mapping[str, Any], pool: tuple[int, int]) -> list[list[Span]]:
    """Spans of an allocator snapshot: blocks in use outside the pool, the pool's segments, and free blocks elsewhere.

    A block in use outside the pool is foreign until a more specific layer names it.

    Args:
        snapshot: what ``torch.cuda.memory_snapshot()`` gives, under the key ``segments``.
        pool: the graph pool's id.
    """
    live: list[Span] = []
    pooled: list[Span] = []
    freed: list[Span] = []
    for segment in snapshot["segments"]:
        mine = tuple(segment.get("segment_pool_id", (0, 0))) == tuple(pool)
        if mine:
            pooled.append(Span(segment["address"], segment["total_size"], POOL))
            continue
        address = segment["address"]
        for block in segment["blocks"]:
            start = block.get("address", address)
            owner = FOREIGN if block["state"] == "active_allocated" else FREED
            (live if owner == FOREIGN else freed).append(Span(start, block["size"], owner))
            address = start + block["size"]
    return [live, pooled, freed]


def pool_layout(snapshot: Mapping[str, Any], pool: tuple[int, int]) -> tuple[list[int], AddressMap]:
    """Sizes of a graph pool's free blocks, bytes, and a map that knows the pool's segments only."""
    free: list[int] = []
    spans: list[Span] = []
    for segment in snapshot["segments"]:
        if tuple(segment.get("segment_pool_id", (0, 0))) == tuple(pool):
            spans.append(Span(segment["address"], segment["total_size"], POOL))
            # A larger request would be served from the segments for large blocks.
            most = _LARGEST_SMALL if segment.get("segment_type") == "small" else segment["total_size"]
            for block in segment["blocks"]:
                if block["state"] == "inactive":
                    whole, rest = divmod(block["size"], most)
                    free += [most] * whole + [rest] * bool(rest)
    return free, AddressMap([spans])
