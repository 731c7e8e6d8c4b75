"""The pool of several graphs as a map: who writes where another graph's output lies, or where another one reads."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from graphcheck.backend.protocol import PoolUse
from graphcheck.finding import Location
from graphcheck.oracle.arm import storage_key
from graphcheck.oracle.capturing import Graph

_MOST = 6


def overlaps(graphs: Mapping[Hashable, Graph | None]) -> list[str]:
    """Lines of evidence for memory that one graph of a pool writes and another one needs; empty where there is none.

    Overlap alone is no defect: graphs that are replayed one after the other may share what nobody needs any more.
    """
    captured = {key: graph for key, graph in graphs.items() if graph is not None}
    if len(captured) < 2:
        return []
    uses: dict[Hashable, Sequence[PoolUse]] = {}
    for key, graph in captured.items():
        seen = graph.recording.pool_uses()
        if seen is None:
            return ["what the graphs do with their pool is not known"]
        uses[key] = seen
    lines = [
        line
        for key, graph in captured.items()
        for other in captured
        if other != key
        for line in (*_outputs(key, graph, other, uses[other]), *_reads(key, uses[key], other, uses[other]))
    ]
    more = [f"and {len(lines) - _MOST} more overlaps in the pool"] if len(lines) > _MOST else []
    return lines[:_MOST] + more


def _outputs(key: Hashable, graph: Graph, other: Hashable, uses: Sequence[PoolUse]) -> Iterator[str]:
    """Outputs of one graph where another graph writes."""
    for name, tensor in graph.recording.outputs.items():
        if not tensor.numel():
            continue
        start = storage_key(tensor)
        end = start + tensor.untyped_storage().nbytes()
        for use in uses:
            if not (use.address < end and start < use.address + use.nbytes) or use.writes is False:
                continue
            if use.writes is None:
                yield f"output {name} of the graph of key {key!r}: an argument of the graph of key {other!r} points there"
            else:
                yield f"output {name} of the graph of key {key!r}: the graph of key {other!r} writes there{_at(use.writer)}"
            break


def _reads(key: Hashable, mine: Sequence[PoolUse], other: Hashable, theirs: Sequence[PoolUse]) -> Iterator[str]:
    """Blocks that one graph reads without having written them, and that another graph writes."""
    written = {use.address: use for use in theirs if use.writes}
    for use in mine:
        if use.reads and use.address in written:
            yield (
                f"{use.nbytes} bytes of the pool: the graph of key {key!r} reads them{_at(use.reader)} without writing "
                f"them first, and the graph of key {other!r} writes them{_at(written[use.address].writer)}"
            )


def _at(where: Location | None) -> str:
    return f" ({where})" if where is not None else ""
