"""An active emulator for every test of this folder that asks for one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from graphcheck.backend.emulator import EmulatorBackend
from graphcheck.errors import CaptureRefused


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def backend() -> Iterator[EmulatorBackend]:
    emulator = EmulatorBackend()
    with emulator.active(), torch.no_grad():
        yield emulator


@pytest.fixture
def refused(backend: EmulatorBackend) -> Callable[[Callable[[], Any]], CaptureRefused]:
    """Record a function that must be refused; the refusal."""

    def check(function: Callable[[], Any]) -> CaptureRefused:
        def region() -> dict[str, torch.Tensor]:
            function()
            return {}

        with pytest.raises(CaptureRefused) as caught:
            backend.record(region, backend.pool())
        return caught.value

    return check
