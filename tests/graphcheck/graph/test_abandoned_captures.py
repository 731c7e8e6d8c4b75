"""What the CUDA backend leaves of a capture that failed: no warning, and no graph; a stand-in takes torch's graph's place."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphcheck.backend.cuda import memory
from graphcheck.backend.cuda.backend import CudaBackend
from graphcheck.backend.cuda.features import Features
from graphcheck.errors import CaptureRefused, ComponentRaised

EMPTY = (
    "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on wrong device or stream."
)


class Stand:
    """Warns of an empty graph where torch's does."""

    made: list[weakref.ref[Stand]] = []

    def __init__(self, keep_graph: bool = False) -> None:
        self.made.append(weakref.ref(self))

    def capture_begin(self, pool: Any = None) -> None:
        pass

    def capture_end(self) -> None:
        warnings.warn(EMPTY, UserWarning, stacklevel=1)

    def reset(self) -> None:
        pass


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> CudaBackend:
    """A backend whose device does nothing."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Stand)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: [])
    monkeypatch.setattr(memory, "features", lambda: Features(True, False, False, False))
    monkeypatch.setattr(Stand, "made", [])
    made = object.__new__(CudaBackend)
    made.device, made._spot = torch.device("cpu"), torch.zeros(1)
    return made


def illegal() -> dict[str, torch.Tensor]:
    raise RuntimeError("operation not permitted when stream is capturing")


def illegal_in_a_component() -> dict[str, torch.Tensor]:
    try:
        return illegal()
    except RuntimeError as error:
        raise ComponentRaised("a component", "run", error, None) from error


def building() -> dict[str, torch.Tensor]:
    raise CaptureRefused("GC405", "built inside", "build it before", None)


def refused(backend: CudaBackend, region: Callable[[], dict[str, torch.Tensor]]) -> str:
    """The code of what the region is refused with."""
    try:
        backend.record(region, (0, 1))
    except CaptureRefused as refusal:
        return refusal.code
    return ""


@pytest.mark.filterwarnings("error")
def test_an_abandoned_capture_that_is_empty_is_no_warning(backend: CudaBackend) -> None:
    """Expected: what the region raised, not torch's words on the graph that is dropped, nor on the one that heals."""
    assert refused(backend, illegal) == "GC608"
    assert refused(backend, building) == "GC405"


@pytest.mark.parametrize("region", [illegal, illegal_in_a_component])
def test_a_refused_capture_leaves_no_graph_to_the_collector(
    backend: CudaBackend, region: Callable[[], dict[str, torch.Tensor]]
) -> None:
    """A graph in a cycle would be destroyed inside a later capture, which would be blamed for it (GC606)."""
    gc.disable()
    try:
        assert refused(backend, region) == "GC608"
        assert [graph for graph in Stand.made if graph() is not None] == []
    finally:
        gc.enable()


def test_a_capture_that_succeeds_may_warn(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphcheck.backend.cuda.backend.CudaRecording", lambda *_: None)
    with pytest.warns(UserWarning, match="is empty"):
        backend.record(lambda: {}, (0, 1))
