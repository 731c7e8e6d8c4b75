"""Order around replays: what is written, read and replayed on streams that do not wait for each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from graphcheck.backend.emulator import EmulatorBackend
from graphcheck.backend.emulator.recording import EmulatedRecording
from graphcheck.cases import Contents


@pytest.fixture
def doubling(backend: EmulatorBackend) -> tuple[torch.Tensor, EmulatedRecording]:
    """An input and a graph that doubles it."""
    x = torch.ones(4, device="cuda")
    return x, backend.record(lambda: {"y": x * 2}, backend.pool())


def codes(recording: EmulatedRecording) -> list[str]:
    return [finding.code for finding in recording.objections({})]


@pytest.mark.parametrize("waits", [False, True])
def test_a_write_on_another_stream_must_be_waited_for(
    doubling: tuple[torch.Tensor, EmulatedRecording], waits: bool
) -> None:
    (x, recording), side = doubling, torch.cuda.Stream()
    with torch.cuda.stream(side):
        x.add_(1)
    if waits:
        torch.cuda.current_stream().wait_stream(side)
    assert codes(recording) == ([] if waits else ["GC206"])


@pytest.mark.parametrize(
    "wait",
    [lambda: torch.cuda.synchronize(), lambda: torch.cuda.current_stream().synchronize()],
    ids=["device", "stream"],
)
def test_a_write_must_wait_for_the_replay_that_reads(
    doubling: tuple[torch.Tensor, EmulatedRecording], wait: Callable[[], None]
) -> None:
    (x, recording), side = doubling, torch.cuda.Stream()
    for waited in (True, False):
        recording.replay()
        if waited:
            wait()
        with torch.cuda.stream(side):
            x.add_(1)
        torch.cuda.current_stream().wait_stream(side)
        assert codes(recording) == ([] if waited else ["GC206"])


def test_a_pageable_copy_is_waited_for_by_the_host(doubling: tuple[torch.Tensor, EmulatedRecording]) -> None:
    x, recording = doubling
    with torch.cuda.stream(torch.cuda.Stream()):
        x.copy_(torch.zeros(4))
    assert codes(recording) == []


@pytest.mark.parametrize("waits", [False, True])
def test_replays_of_one_pool_on_two_streams_must_wait(backend: EmulatorBackend, waits: bool) -> None:
    x, pool, side = torch.ones(4, device="cuda"), backend.pool(), torch.cuda.Stream()
    one, two = (backend.record(lambda: {"y": x * 2}, pool) for _ in range(2))
    one.replay()
    if waits:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        assert codes(two) == ([] if waits else ["GC503"])


@pytest.mark.parametrize("waits", [False, True])
def test_pinned_memory_is_not_written_before_the_copy_has_read_it(backend: EmulatorBackend, waits: bool) -> None:
    x, host = torch.ones(4, device="cuda"), torch.ones(4).pin_memory()

    def region() -> dict[str, torch.Tensor]:
        x.copy_(host, non_blocking=True)
        return {}

    recording = backend.record(region, backend.pool())
    host.fill_(2)
    assert codes(recording) == []
    recording.replay()
    done = torch.cuda.Event()
    done.record()
    if waits:
        done.synchronize()
    host.fill_(3)
    assert codes(recording) == ([] if waits else ["GC408"])


def test_an_eager_copy_from_pinned_memory_counts_and_a_read_of_its_result_waits(backend: EmulatorBackend) -> None:
    x, host = torch.ones(4, device="cuda"), torch.ones(4).pin_memory()
    recording = backend.record(lambda: {"y": x * 2}, backend.pool())
    for read in (True, False):
        x.copy_(host, non_blocking=True)
        if read:
            assert x.tolist() == host.tolist()
        host.add_(1)
        assert codes(recording) == ([] if read else ["GC408"])


def test_filling_with_contents_waits_for_no_copy(backend: EmulatorBackend) -> None:
    """On a GPU contents are tiled from a table on the device."""
    x, y, host = torch.ones(4, device="cuda"), torch.ones(4, device="cuda"), torch.ones(4).pin_memory()
    recording = backend.record(lambda: {"y": x * 2}, backend.pool())
    x.copy_(host, non_blocking=True)
    Contents("normal", 1).fill(y)
    host.fill_(2)
    assert codes(recording) == ["GC408"]
