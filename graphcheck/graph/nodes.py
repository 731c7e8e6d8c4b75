"""The nodes of a CUDA graph as plain data, so that everything that reads them can be tested without a GPU."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

KERNEL, MEMCPY, MEMSET, MEM_ALLOC, MEM_FREE, HOST = "kernel", "memcpy", "memset", "mem_alloc", "mem_free", "host"


@dataclass(frozen=True)
class Argument:
    """One kernel parameter as bytes.

    Args:
        index: position among the parameters.
        offset: byte offset in the parameter buffer.
        data: the bytes frozen at capture.
    """

    index: int
    offset: int
    data: bytes

    def words(self) -> Iterator[tuple[int, int]]:
        """The aligned 8-byte words inside, as (byte offset within the argument, value)."""
        for start in range(0, len(self.data) - 7, 8):
            yield start, int.from_bytes(self.data[start : start + 8], "little")


@dataclass(frozen=True)
class Copy:
    """One end-to-end copy or set of memory.

    Args:
        source, destination: addresses; 0 where there is none (a memset has no source).
        source_host, destination_host: whether that end is host memory.
        nbytes: bytes moved.
    """

    source: int
    destination: int
    source_host: bool
    destination_host: bool
    nbytes: int


@dataclass(frozen=True)
class Node:
    """One node of a captured graph.

    Args:
        index: position in the graph's node list.
        kind: ``"kernel"``, ``"memcpy"``, ``"memset"``, ``"mem_alloc"``, ``"mem_free"``, ``"host"`` or the driver's name.
        name: kernel name; empty for other kinds.
        grid, block: launch extents; zeros for other kinds.
        shared: dynamic shared memory, bytes.
        arguments: kernel parameters.
        copy: for memcpy and memset.
        address, nbytes: for memory nodes.
        after: indices of the nodes it depends on.
    """

    index: int
    kind: str
    name: str = ""
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)
    shared: int = 0
    arguments: tuple[Argument, ...] = ()
    copy: Copy | None = None
    address: int = 0
    nbytes: int = 0
    after: tuple[int, ...] = field(default=())

    @property
    def label(self) -> str:
        """Kernel name or kind, short enough for a table."""
        return short_name(self.name) if self.kind == KERNEL else self.kind

    def to_json(self) -> dict[str, Any]:
        return {
            "index": self.index,
            "kind": self.kind,
            "name": self.name,
            "grid": list(self.grid),
            "block": list(self.block),
            "shared": self.shared,
            "arguments": [
                {"index": argument.index, "offset": argument.offset, "data": argument.data.hex()}
                for argument in self.arguments
            ],
            "copy": vars(self.copy) if self.copy is not None else None,
            "address": self.address,
            "nbytes": self.nbytes,
            "after": list(self.after),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Node:
        return Node(
            index=data["index"],
            kind=data["kind"],
            name=data["name"],
            grid=(data["grid"][0], data["grid"][1], data["grid"][2]),
            block=(data["block"][0], data["block"][1], data["block"][2]),
            shared=data["shared"],
            arguments=tuple(
                Argument(item["index"], item["offset"], bytes.fromhex(item["data"])) for item in data["arguments"]
            ),
            copy=Copy(**data["copy"]) if data["copy"] is not None else None,
            address=data["address"],
            nbytes=data["nbytes"],
            after=tuple(data["after"]),
        )


def short_name(name: str) -> str:
    """A kernel name without template arguments and namespaces, at most 60 characters; mangled C++ names too."""
    if name.startswith("_ZN"):
        name = _innermost(name) or name
    head = name.split("<", 1)[0].split("(", 1)[0].strip()
    return (head.rsplit("::", 1)[-1] or head)[:60]


def _innermost(mangled: str) -> str:
    """The last of the identifiers that a nested mangled name begins with: each is a length and as many characters."""
    at, found = len("_ZN"), ""
    while at < len(mangled) and mangled[at].isdigit():
        digits = at
        while mangled[digits : digits + 1].isdigit():
            digits += 1
        end = digits + int(mangled[at:digits])
        found, at = mangled[digits:end], end
    return found


def digest(nodes: Sequence[Node]) -> str:
    """A short hash of the topology: kinds, kernel names, launch extents and edges, but no addresses or arguments."""
    text = "\n".join(f"{node.kind} {node.name} {node.grid} {node.block} {node.after}" for node in nodes)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def dot(nodes: Sequence[Node]) -> str:
    """The graph in Graphviz' language."""
    lines = ["digraph captured {", "  node [shape=box, fontname=monospace];"]
    for node in nodes:
        extent = f"\\n{_extent(node.grid)} x {_extent(node.block)}" if node.kind == KERNEL else ""
        label = node.label.replace('"', "'")
        lines.append(f'  n{node.index} [label="{node.index}: {label}{extent}"];')
        lines += [f"  n{before} -> n{node.index};" for before in node.after]
    return "\n".join([*lines, "}"]) + "\n"


def _extent(extent: tuple[int, int, int]) -> str:
    return ",".join(map(str, extent))
