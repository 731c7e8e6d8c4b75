"""Virtual streams: forks and joins are captured, the rest is refused or noted."""

from __future__ import annotations

import pytest
import torch

from graphcheck.backend.emulator import EmulatorBackend
from graphcheck.errors import CaptureRefused
from graphcheck.finding import Severity


def test_a_fork_that_joins_is_recorded(backend: EmulatorBackend) -> None:
    x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()

    def region() -> dict[str, torch.Tensor]:
        current = torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            assert torch.cuda.is_current_stream_capturing()
            y = x + 1
        current.wait_stream(side)
        return {"y": y * 2}

    recording = backend.record(region, backend.pool())
    assert len(recording.operations()) == 2
    assert recording.findings() == []
    recording.replay()
    assert recording.outputs["y"].tolist() == [4.0] * 4


def test_a_fork_by_events_and_through_a_third_stream_joins(backend: EmulatorBackend) -> None:
    x, one, two = torch.ones(4, device="cuda"), torch.cuda.Stream(), torch.cuda.Stream()

    def region() -> dict[str, torch.Tensor]:
        fork = torch.cuda.Event()
        fork.record()
        one.wait_event(fork)
        with torch.cuda.stream(one):
            x.add_(1)
        two.wait_event(one.record_event())
        with torch.cuda.stream(two):
            x.mul_(3)
        done = two.record_event()
        torch.cuda.current_stream().wait_event(done)
        return {}

    recording = backend.record(region, backend.pool())
    recording.replay()
    assert x.tolist() == [6.0] * 4


def test_a_fork_that_does_not_join_is_refused_at_the_end(backend: EmulatorBackend) -> None:
    x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()

    def region() -> dict[str, torch.Tensor]:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.add_(1)
        return {}

    with pytest.raises(CaptureRefused, match="GC202"):
        backend.record(region, backend.pool())


def test_a_fork_without_work_needs_no_join(backend: EmulatorBackend) -> None:
    side = torch.cuda.Stream()

    def region() -> dict[str, torch.Tensor]:
        side.wait_stream(torch.cuda.current_stream())
        return {}

    backend.record(region, backend.pool())


def test_waiting_for_work_outside_the_capture_is_refused(backend: EmulatorBackend) -> None:
    x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()
    with torch.cuda.stream(side):
        x.add_(1)

    def region() -> dict[str, torch.Tensor]:
        torch.cuda.current_stream().wait_stream(side)
        return {}

    with pytest.raises(CaptureRefused, match="GC203") as caught:
        backend.record(region, backend.pool())
    assert caught.value.where is not None
    assert "wait_stream(side)" in caught.value.where.source


def test_an_external_event_may_be_waited_for(backend: EmulatorBackend) -> None:
    event = torch.cuda.Event(external=True)
    event.record()

    def region() -> dict[str, torch.Tensor]:
        torch.cuda.current_stream().wait_event(event)
        return {}

    backend.record(region, backend.pool())


def test_work_on_a_stream_outside_the_capture_runs_now_and_is_named(backend: EmulatorBackend) -> None:
    x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()

    def region() -> dict[str, torch.Tensor]:
        with torch.cuda.stream(side):
            x.add_(1)  # lost
        return {}

    recording = backend.record(region, backend.pool())
    [finding] = recording.findings()
    assert (finding.code, finding.severity) == ("GC204", Severity.ERROR)
    assert finding.where is not None
    assert "lost" in finding.where.source
    assert x.tolist() == [2.0] * 4
    recording.replay()
    assert x.tolist() == [2.0] * 4


def test_an_event_of_a_capture_is_none_outside(backend: EmulatorBackend) -> None:
    event = torch.cuda.Event()

    def region() -> dict[str, torch.Tensor]:
        event.record()
        return {}

    backend.record(region, backend.pool())
    with pytest.raises(CaptureRefused, match="GC205"):
        event.synchronize()


def test_streams_and_events_work_outside_captures(backend: EmulatorBackend) -> None:
    side = torch.cuda.Stream()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() is side
        torch.ones(3, device="cuda").record_stream(side)
    end.record()
    end.synchronize()
    side.synchronize()
    assert end.query()
    assert side.query()
    assert start.elapsed_time(end) >= 0
    assert torch.cuda.current_stream() is torch.cuda.default_stream()


def test_joining_a_stream_that_was_given_work_and_never_forked_is_refused(backend: EmulatorBackend) -> None:
    x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()

    def region() -> dict[str, torch.Tensor]:
        with torch.cuda.stream(side):
            x.add_(1)
        torch.cuda.current_stream().wait_stream(side)
        return {}

    with pytest.raises(CaptureRefused, match="GC201"):
        backend.record(region, backend.pool())


def test_the_legacy_stream_cannot_join_a_capture(backend: EmulatorBackend) -> None:
    def region() -> dict[str, torch.Tensor]:
        torch.cuda.default_stream().wait_stream(torch.cuda.current_stream())
        return {}

    with pytest.raises(CaptureRefused, match="GC111"):
        backend.record(region, backend.pool())


@pytest.mark.parametrize(("count", "codes"), [(7, []), (8, ["GC207"])])
def test_more_streams_than_hardware_queues_are_noted(backend: EmulatorBackend, count: int, codes: list[str]) -> None:
    x, sides = torch.ones(4, device="cuda"), [torch.cuda.Stream() for _ in range(count)]

    def region() -> dict[str, torch.Tensor]:
        current = torch.cuda.current_stream()
        for side in sides:
            side.wait_stream(current)
            with torch.cuda.stream(side):
                torch.neg(x)
            current.wait_stream(side)
        return {}

    assert [finding.code for finding in backend.record(region, backend.pool()).findings()] == codes
