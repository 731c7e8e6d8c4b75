"""Pinned memory that a region drops is released behind the capture, where torch may mark its release with an event."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping

import pytest
import torch

from graphcheck.backend.emulator import EmulatorBackend
from graphcheck.backend.emulator.recording import EmulatedRecording
from graphcheck.errors import CaptureRefused
from graphcheck.oracle.arm import Arm
from graphcheck.strategies import sample
from graphcheck.zoo.forbidden import PinsInside


class LooksWhenItEnds(EmulatorBackend):
    """Notes whether a buffer is alive when the capture ends."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: weakref.ref[torch.Tensor] | None = None
        self.alive = False

    def record(self, region: Callable[[], Mapping[str, torch.Tensor]], pool: object) -> EmulatedRecording:
        try:
            return super().record(region, pool)
        finally:
            self.alive = self.watched is not None and self.watched() is not None


@pytest.mark.parametrize("through", ["record", "record_as"])
def test_a_buffer_of_the_warm_up_outlives_the_capture_that_replaces_it(through: str) -> None:
    backend = LooksWhenItEnds()
    with backend.active():
        arm = Arm(PinsInside(), backend)
        arm.stage(sample(arm.component))
        arm.run()
        backend.watched = weakref.ref(arm.component.host)
        if through == "record":
            arm.record(backend.pool())
        else:
            arm.record_as(arm.run, backend.pool())
        assert backend.alive
        assert backend.watched() is None


def test_it_is_released_where_the_capture_is_refused() -> None:
    class Reads(PinsInside):
        def run(self, buffers: object) -> Mapping[str, torch.Tensor]:
            outputs = super().run(buffers)
            self.longest = int(buffers.lens.max()) if torch.cuda.is_current_stream_capturing() else 0
            return outputs

    backend = LooksWhenItEnds()
    with backend.active():
        arm = Arm(Reads(), backend)
        arm.stage(sample(arm.component))
        arm.run()
        backend.watched = weakref.ref(arm.component.host)
        with pytest.raises(CaptureRefused):
            arm.record(backend.pool())
        assert backend.alive
        assert backend.watched() is None
