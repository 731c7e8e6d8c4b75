"""A collection inside a capture is named only if it destroys a graph."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from graphcheck.backend.cuda.watch import Watch


class Stand:
    """Stands in for torch's graph: a Python object that a reference cycle keeps alive.

    Args:
        captured: the driver holds a graph for it.
    """

    def __init__(self, captured: bool = True) -> None:
        self.captured = captured

    def pool(self) -> tuple[int, int]:
        if not self.captured:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return (0, 1)


@pytest.fixture(autouse=True)
def graphs_are_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Stand)


def test_a_graph_that_only_a_cycle_holds_is_noted_when_it_goes() -> None:
    cycle: list[Any] = [Stand()]
    cycle.append(cycle)
    watch = Watch()
    with watch.collections():
        del cycle
        gc.collect()
    (finding,) = watch.findings([], [])
    assert finding.code == "GC606"
    assert finding.where is not None
    assert "gc.collect()" in finding.where.source


def test_a_graph_that_was_reset_or_never_captured_goes_without_a_word() -> None:
    """Its destruction asks nothing of the driver."""
    cycle: list[Any] = [Stand(captured=False)]
    cycle.append(cycle)
    watch = Watch()
    with watch.collections():
        del cycle
        gc.collect()
    assert watch.findings([], []) == []


def test_a_collection_that_destroys_no_graph_is_silent() -> None:
    kept, watch = Stand(), Watch()
    with watch.collections():
        gc.collect()
    assert watch.findings([], []) == []
    assert isinstance(kept, Stand)


def test_the_collector_is_off_inside_and_as_it_was_afterwards() -> None:
    watch = Watch()
    with watch.collections():
        assert not gc.isenabled()
    assert gc.isenabled()
