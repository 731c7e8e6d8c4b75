"""Which of a component's names the ledger of a recording follows; kernel arguments without a device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphcheck.backend.cuda import recording
from graphcheck.backend.cuda.features import Features
from graphcheck.backend.cuda.recording import CudaRecording
from graphcheck.backend.cuda.watch import Watch
from graphcheck.graph.nodes import KERNEL, Argument, Node
from graphcheck.graph.segments import POOL, STATIC

POOL_ID = (0, 7)


class OnDevice(torch.Tensor):
    """A CPU tensor that says it lies on the device."""

    is_cuda = property(lambda self: True)


def tensor() -> Any:
    return torch.zeros(128).as_subclass(OnDevice)


def segment(held: torch.Tensor, pool: tuple[int, int]) -> dict[str, Any]:
    """The allocator's segment of one tensor."""
    size = held.untyped_storage().nbytes()
    blocks = [{"address": held.data_ptr(), "size": size, "state": "active_allocated"}]
    return {"address": held.data_ptr(), "total_size": size, "segment_pool_id": pool, "blocks": blocks}


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> tuple[CudaRecording, Any, Any]:
    """A graph whose kernel takes a static input and a tensor that the region made, and the two."""
    given, made = tensor(), tensor()
    segments = [segment(given, (0, 0)), segment(made, POOL_ID)]
    monkeypatch.setattr(recording, "features", lambda: Features(True, False, False, False))
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: segments)
    watch = Watch()
    watch.log.born[made.data_ptr()] = None
    graph: Any = SimpleNamespace(instantiate=lambda: None, pool=lambda: POOL_ID)
    found = CudaRecording(graph, {}, watch)
    arguments = [
        Argument(place, 8 * place, held.data_ptr().to_bytes(8, "little")) for place, held in enumerate((given, made))
    ]
    found.nodes = [Node(0, KERNEL, arguments=tuple(arguments))]
    found.name({"given": given, "made": made})
    return found, given, made


def test_a_static_input_that_is_bound_anew_is_named(captured: tuple[CudaRecording, Any, Any]) -> None:
    found, _, made = captured
    (objection,) = found.objections({"given": tensor(), "made": made})
    assert (objection.code, objection.place) == ("GC401", "given")


def test_an_attribute_that_the_region_assigned_may_be_bound_anew(captured: tuple[CudaRecording, Any, Any]) -> None:
    """The graph owns what it made, and goes on writing there. Expected: no word of an old address."""
    found, given, _ = captured
    assert found.objections({"given": given, "made": tensor()}) == []
    assert [word.span.owner for word in found.addresses.words(found.nodes)] == [STATIC, POOL]
