"""Inspection: what one captured graph consists of and what its arguments point at, as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from graphcheck.finding import Finding, Severity
from graphcheck.graph.nodes import KERNEL, MEM_ALLOC, MEM_FREE, MEMCPY, Node, digest
from graphcheck.graph.segments import FOREIGN, FREED, Word, argument_words


@dataclass
class Inspection:
    """One graph, taken apart.

    Args:
        target: the component.
        nodes: in creation order.
        words: argument words that lie in device memory, each with its class.
        held: addresses of host buffers that somebody owns for as long as the graph lives.
    """

    target: str
    nodes: Sequence[Node]
    words: Sequence[Word]
    held: frozenset[int] = frozenset()
    findings: list[Finding] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.findings += self._memory_nodes() + self._host_copies() + self._strangers()

    @property
    def digest(self) -> str:
        """A short hash of the topology."""
        return digest(self.nodes)

    @property
    def exit_code(self) -> int:
        """1 if a finding is an error, else 0."""
        return int(any(finding.severity is Severity.ERROR for finding in self.findings))

    def counts(self) -> dict[str, int]:
        """Nodes by kind, and argument words by what they belong to."""
        kinds = Counter(node.kind for node in self.nodes)
        owners = Counter(f"words in {word.span.owner}" for word in self.words)
        no_address = len(argument_words(self.nodes)) - len(self.words)
        return {**dict(sorted(kinds.items())), **dict(sorted(owners.items())), "words without an address": no_address}

    def arguments(self, node: Node) -> list[str]:
        """For each argument of a node: its position, and what it points at or its number; structs show pointers only."""
        shown: list[tuple[int, str]] = []
        for word in self.words:
            if word.node == node.index:
                behind = f"+{word.address - word.span.start}" if word.address != word.span.start else ""
                shown.append((word.argument, f"{word.argument}: {word.span.name or word.span.owner}{behind}"))
        pointing = {argument for argument, _ in shown}
        for argument in node.arguments:
            if argument.index not in pointing and len(argument.data) in (1, 2, 4, 8):
                number = int.from_bytes(argument.data, "little", signed=True)
                shown.append((argument.index, f"{argument.index} = {number}"))
        return [text for _, text in sorted(shown, key=lambda item: item[0])]

    def _memory_nodes(self) -> list[Finding]:
        memory = [node for node in self.nodes if node.kind in (MEM_ALLOC, MEM_FREE)]
        if not memory:
            return []
        allocated = sum(node.nbytes for node in memory if node.kind == MEM_ALLOC)
        return [
            Finding(
                code="GC409",
                message=f"the graph holds {len(memory)} memory nodes ({allocated} bytes)",
                place=f"node {memory[0].index}",
                expected="no allocation or free inside the graph",
                got=", ".join(node.kind for node in memory[:4]),
                advice="allocate before the capture; stream-ordered allocation inside it becomes part of the graph",
            )
        ]

    def _host_copies(self) -> list[Finding]:
        """Copies that read or write host memory at every replay: an error unless a buffer of the component holds it."""
        found = []
        for node in self.nodes:
            if node.kind != MEMCPY or node.copy is None:
                continue
            ends = ((node.copy.source_host, node.copy.source), (node.copy.destination_host, node.copy.destination))
            for is_host, address in ends:
                if not is_host:
                    continue
                owned = address in self.held
                found.append(
                    Finding(
                        code="GC407",
                        message=f"node {node.index} copies {node.copy.nbytes} bytes "
                        f"{'from' if address == node.copy.source else 'to'} host memory at every replay",
                        severity=Severity.NOTE if owned else Severity.ERROR,
                        place=f"node {node.index}, 0x{address:x}",
                        expected="a host buffer that is kept with the graph",
                        got="a buffer of the component"
                        if owned
                        else "an address that no buffer of the component holds",
                        advice="keep the pinned buffer alive with the graph, or copy before the capture",
                    )
                )
        return found

    def _strangers(self) -> list[Finding]:
        found = []
        for owner, what in ((FREED, "memory that is free"), (FOREIGN, "memory that no buffer of the component names")):
            words = [word for word in self.words if word.span.owner == owner]
            if words:
                names = sorted({node.label for node in self.nodes for word in words if word.node == node.index})
                found.append(
                    Finding(
                        code="GC402" if owner == FREED else "GC401",
                        message=f"{len(words)} kernel arguments point into {what}",
                        place=f"node {words[0].node}, argument {words[0].argument}, 0x{words[0].address:x}",
                        severity=Severity.ERROR if owner == FREED else Severity.WARNING,
                        expected="static inputs, the graph's pool, or a library workspace",
                        got=", ".join(names[:4]),
                        advice="keep every tensor that the region reads in Buffers or on the component",
                    )
                )
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "digest": self.digest,
            "counts": self.counts(),
            "nodes": [{**node.to_json(), "arguments_classed": self.arguments(node)} for node in self.nodes],
            "findings": [finding.to_json() for finding in self.findings],
        }

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Index, kind, name, launch and arguments of each node, for a table."""
        return [
            (
                str(node.index),
                node.kind,
                node.label if node.kind == KERNEL else "",
                f"{node.grid} x {node.block}" if node.kind == KERNEL else "",
                ", ".join(self.arguments(node)),
            )
            for node in self.nodes
        ]
