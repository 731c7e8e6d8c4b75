"""What else goes on in the pool of a plan's graphs: a neighbour's graph between the steps, and evictions."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import torch

from graphcheck.backend.protocol import Backend, Recording
from graphcheck.oracle.capturing import Graph
from graphcheck.plan import Plan


class Neighbours:
    """The harness's own graphs in one pool, as the plan asks for them.

    An output that lies in the pool is good until another graph of the pool runs, and memory that is free there belongs
    to nobody. The neighbour stands for a second component that was given the pool: captured first, it would have its
    intermediates where the outputs are now; captured last, it has the free blocks.

    Args:
        plan: what is asked for.
        backend: active.
        pool: of the plan's graphs; None where each has its own, and no neighbour reaches any.
        graphs: the graphs by key; evicted ones are taken out.
        keys: the graph key of each replay.
    """

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        pool: object | None,
        graphs: dict[Hashable, Graph | None],
        keys: list[Hashable],
    ) -> None:
        self.plan = plan
        self.backend = backend
        self.pool = pool
        self.graphs = graphs
        self.keys = keys
        self._own: Recording | None = None
        if plan.neighbour:
            self._move_in()

    def before_replay(self, number: int) -> None:
        """Evict where it is time: the graphs that no later replay needs are gone, and their memory is in use again."""
        if number != self.plan.evict:
            return
        idle = [key for key in self.graphs if key not in self.keys[number:]]
        for key in idle:
            graph = self.graphs.pop(key)
            if graph is not None:
                graph.recording.close()
        if idle:
            self._move_in()
            if self._own is not None:
                self._own.replay()

    def after_step(self) -> None:
        """The neighbour has run, if there is one; what took over from evicted graphs ran once and keeps its memory."""
        if self._own is not None and self.plan.neighbour:
            self._own.replay()

    def close(self) -> None:
        """Give the memory back."""
        if self._own is not None:
            self._own.close()
            self._own = None

    def _move_in(self) -> None:
        """Capture the harness's graph into what is free in the pool, and over the outputs if there is a neighbour."""
        self.close()
        if self.pool is not None:
            self._own = self.backend.neighbour(self.pool, _outputs(self.graphs) if self.plan.neighbour else [])


def _outputs(graphs: Mapping[Hashable, Graph | None]) -> list[torch.Tensor]:
    return [tensor for graph in graphs.values() if graph is not None for tensor in graph.recording.outputs.values()]
