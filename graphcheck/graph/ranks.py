"""Several ranks: do they hold the same graph? Compared from what `graphcheck inspect --json` wrote on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphcheck.finding import Finding
from graphcheck.graph.nodes import Node


def unlike(graphs: Mapping[str, Sequence[Node]]) -> list[Finding]:
    """GC902 for each rank whose graph differs from that of the first: collectives would wait for each other for ever.

    Args:
        graphs: nodes by the rank's name; kinds, kernels, launch extents and edges count, addresses and arguments do not.
    """
    (first, nodes), *others = graphs.items()
    return [found for name, other in others if (found := _difference(first, nodes, name, other)) is not None]


def _difference(first: str, nodes: Sequence[Node], second: str, others: Sequence[Node]) -> Finding | None:
    for index in range(max(len(nodes), len(others))):
        one = _shape(nodes[index]) if index < len(nodes) else "no node"
        other = _shape(others[index]) if index < len(others) else "no node"
        if one != other:
            return Finding(
                code="GC902",
                message=f"{first} and {second} captured different graphs ({len(nodes)} and {len(others)} nodes)",
                place=f"node {index}",
                expected=f"{one}, as on {first}",
                got=f"{other} on {second}",
                advice="let every rank take the same branches and capture the same variants in the same order",
            )
    return None


def _shape(node: Node) -> str:
    launch = f" {node.grid} x {node.block}" if any(node.grid) else ""
    return f"{node.label}{launch} after {list(node.after)}"
