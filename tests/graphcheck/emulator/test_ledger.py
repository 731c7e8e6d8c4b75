"""The address ledger objects to names that moved and to memory that died."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from graphcheck.backend.emulator import EmulatorBackend
from graphcheck.backend.protocol import Recording

Names = dict[str, torch.Tensor]


def captured(backend: EmulatorBackend, names: Names) -> Recording:
    def region() -> Names:
        return {"out": names["x"] * 2}

    recording = backend.record(region, backend.pool())
    recording.name(names)
    return recording


def rebound(names: Names) -> None:
    names["x"] = torch.ones(4, device="cuda")


def grown(names: Names) -> None:
    names["x"] = torch.ones(9, device="cuda")


def assigned(names: Names) -> None:
    names["x"].data = torch.ones(4, device="cuda")


def set_elsewhere(names: Names) -> None:
    names["x"].set_(torch.ones(4, device="cuda"))


def resized(names: Names) -> None:
    names["x"].resize_(4096)


def dropped(names: Names) -> None:
    del names["x"]


MOVES: list[tuple[Callable[[Names], None], str]] = [
    (rebound, "GC401"),
    (grown, "GC404"),
    (assigned, "GC403"),
    (set_elsewhere, "GC403"),
    (resized, "GC404"),
    (dropped, "GC402"),
]


@pytest.mark.parametrize(("move", "code"), MOVES, ids=[f"{move.__name__} is {code}" for move, code in MOVES])
def test_the_ledger_objects(move: Callable[[Names], None], code: str, backend: EmulatorBackend) -> None:
    names = {"x": torch.ones(4, device="cuda")}
    recording = captured(backend, names)
    assert recording.objections(names) == []
    move(names)
    [finding] = recording.objections(names)
    assert finding.code == code
    assert finding.where is not None
    assert "names" in finding.where.source


def test_a_copy_in_place_is_no_objection(backend: EmulatorBackend) -> None:
    names = {"x": torch.ones(4, device="cuda"), "unread": torch.ones(4, device="cuda")}
    recording = captured(backend, names)
    names["x"].copy_(torch.full((4,), 3.0))
    names["unread"] = torch.zeros(4, device="cuda")
    assert recording.objections(names) == []
    recording.replay()
    assert recording.outputs["out"].tolist() == [6.0] * 4


def test_a_moved_tensor_does_not_move_the_graph(backend: EmulatorBackend) -> None:
    names = {"x": torch.ones(4, device="cuda")}
    kept = names["x"].view(4)
    recording = captured(backend, names)
    names["x"].data = torch.full((4,), 5.0, device="cuda")
    assert names["x"].tolist() == [5.0] * 4
    recording.replay()
    assert recording.outputs["out"].tolist() == [2.0] * 4
    kept.fill_(7)
    recording.replay()
    assert recording.outputs["out"].tolist() == [14.0] * 4


def test_a_pinned_source_that_died_is_named(backend: EmulatorBackend) -> None:
    x = torch.zeros(4, device="cuda")
    staging = torch.ones(4).pin_memory()
    recording = backend.record(lambda: {"x": x.copy_(staging, non_blocking=True)}, backend.pool())
    recording.name({"x": x, "staging": staging})
    recording.replay()
    assert x.tolist() == [1.0] * 4
    assert recording.objections({"x": x, "staging": staging}) == []
    staging = torch.zeros(0)
    [finding] = recording.objections({"x": x})
    assert finding.code == "GC407"
    recording.replay()
    assert x.isnan().all()


def test_a_dead_pinned_block_is_recycled_first(backend: EmulatorBackend) -> None:
    x = torch.zeros(4, device="cuda")
    staging = torch.ones(4).pin_memory()
    recording = backend.record(lambda: {"x": x.copy_(staging, non_blocking=True)}, backend.pool())
    staging = torch.zeros(0)
    stranger = torch.full((4,), 8.0).pin_memory()
    recording.replay()
    assert x.tolist() == stranger.tolist()


def test_geometry_follows_the_tensor_that_changed_in_place(backend: EmulatorBackend) -> None:
    x = torch.arange(6.0, device="cuda").reshape(2, 3)
    other = x.view(6)
    x.t_()
    assert (tuple(x.shape), x.stride()) == ((3, 2), (1, 3))
    x.resize_(2, 2)
    assert x.tolist() == [[0, 1], [2, 3]]
    x.unsqueeze_(0)
    assert tuple((x + 1).shape) == (1, 2, 2)
    assert tuple(other.shape) == (6,)
