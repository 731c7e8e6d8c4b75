"""A graph that another library captured, with the few methods of torch's graph that a recording needs."""

from __future__ import annotations

from graphcheck.component import Recorded


class Adopted:
    """Stands in for ``torch.cuda.CUDAGraph``.

    Args:
        recorded: what the component handed over.
    """

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded

    def raw_cuda_graph(self) -> int:
        """The ``cudaGraph_t``; 0 where the library keeps none."""
        return self._recorded.graph

    def instantiate(self) -> None:
        """The library has done it."""

    def replay(self) -> None:
        """Launch the graph on torch's current stream."""
        self._recorded.launch()

    def pool(self) -> tuple[int, int]:
        """No pool of torch's belongs to this graph."""
        return (-1, -1)

    def reset(self) -> None:
        """The library's object owns the graph; it goes with the component."""
