"""What tapes read and write, by bytes: pool maps of several graphs, and ranges of static inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
import torch

from graphcheck.backend.emulator import EmulatorBackend


@pytest.fixture
def backend() -> Iterator[EmulatorBackend]:
    machine = EmulatorBackend()
    with machine.active():
        yield machine


def test_reads_are_told_from_writes_element_by_element(backend: EmulatorBackend) -> None:
    x, out = torch.ones(4, 8, device="cuda"), torch.zeros(4, 3, device="cuda")

    def region() -> Mapping[str, torch.Tensor]:
        out.copy_(x[:, 2:5] * 2)
        return {"out": out}

    read = backend.record(region, backend.pool()).elements_read({"x": x, "out": out})
    expected = torch.zeros(4, 8, dtype=torch.bool)
    expected[:, 2:5] = True
    assert torch.equal(read["x"], expected)
    assert not read["out"].any()


def test_what_the_graph_wrote_itself_is_not_read_from_before(backend: EmulatorBackend) -> None:
    state, total = torch.zeros(6, device="cuda"), torch.zeros(6, device="cuda")

    def region() -> Mapping[str, torch.Tensor]:
        state[:3].fill_(1)
        total.add_(state)
        return {"total": total}

    read = backend.record(region, backend.pool()).elements_read({"state": state, "total": total})
    assert read["state"].all(), "one argument that is written in part only counts whole"
    assert read["total"].all(), "an operation in place reads what it changes"


def test_an_expanded_argument_is_read_once(backend: EmulatorBackend) -> None:
    row = torch.ones(5, device="cuda")

    def region() -> Mapping[str, torch.Tensor]:
        return {"out": row[1:3].expand(4, 2) * 2}

    read = backend.record(region, backend.pool()).elements_read({"row": row})
    assert read["row"].tolist() == [False, True, True, False, False]


def test_staging_is_seen_from_the_host_and_on_the_device(backend: EmulatorBackend) -> None:
    x, y = torch.zeros(6, device="cuda"), torch.zeros(6, device="cuda")

    def stage() -> str:
        x[:2].copy_(torch.ones(2))
        y[4:].add_(1)
        return "staged"

    result, written = backend.elements_written(stage, {"x": x, "y": y})
    assert result == "staged"
    assert written["x"].tolist() == [True, True, False, False, False, False]
    assert written["y"].tolist() == [False, False, False, False, True, True]


def test_the_pool_map_shows_who_reads_what_another_graph_writes(backend: EmulatorBackend) -> None:
    x, pool = torch.ones(8, device="cuda"), backend.pool()
    first = backend.record(lambda: {"hidden": x * 2}, pool)
    hidden = first.outputs["hidden"]
    second = backend.record(lambda: {"out": hidden + 1}, pool)
    (written,) = first.pool_uses()
    assert (written.reads, written.writes) == (False, True)
    assert written.writer is not None and written.writer.function == "<lambda>"
    shared = [use for use in second.pool_uses() if use.address == written.address]
    assert [(use.reads, use.writes) for use in shared] == [(True, False)]
    own = [use for use in second.pool_uses() if use.address != written.address]
    assert [(use.reads, use.writes) for use in own] == [(False, True)]
