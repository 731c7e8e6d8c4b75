"""Random operators draw from the device generator, at each replay anew."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from graphcheck.backend.emulator import EmulatorBackend
from graphcheck.errors import CaptureRefused


def test_replays_draw_what_eager_draws(backend: EmulatorBackend) -> None:
    x = torch.ones(64, device="cuda")

    def region() -> dict[str, torch.Tensor]:
        return {
            "a": torch.rand(8, device="cuda"),
            "b": F.dropout(x),
            "c": x.clone().normal_(),
            "d": torch.multinomial(x, 5),
        }

    recording = backend.record(region, backend.pool())
    torch.cuda.manual_seed(11)
    eager = [{name: tensor.clone() for name, tensor in region().items()} for _ in range(2)]
    torch.cuda.manual_seed(11)
    for step in eager:
        recording.replay()
        for name, tensor in step.items():
            assert torch.equal(tensor, recording.outputs[name])
    assert not torch.equal(eager[0]["a"], eager[1]["a"])


def test_recording_advances_no_generator(backend: EmulatorBackend) -> None:
    before, host = backend.rng_state(), torch.get_rng_state()
    recording = backend.record(lambda: {"a": torch.rand(8, device="cuda")}, backend.pool())
    assert torch.equal(before, backend.rng_state())
    recording.replay()
    assert not torch.equal(before, backend.rng_state())
    first = recording.outputs["a"].clone()
    backend.set_rng_state(before)
    recording.replay()
    assert torch.equal(first, recording.outputs["a"])
    assert torch.equal(host, torch.get_rng_state())


def test_an_unregistered_generator_is_refused(backend: EmulatorBackend) -> None:
    generator = torch.Generator(device="cuda")
    assert generator.device.type == "cuda"
    x = torch.ones(8, device="cuda")
    with pytest.raises(CaptureRefused, match="GC801"):
        backend.record(lambda: {"a": x.normal_(generator=generator)}, backend.pool())


def test_a_registered_generator_is_drawn_from(backend: EmulatorBackend) -> None:
    generator = torch.Generator(device="cuda").manual_seed(5)
    x = torch.ones(8, device="cuda")
    expected = [x.clone().normal_(generator=generator) for _ in range(2)]
    generator.manual_seed(5)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        x.normal_(generator=generator)
    for step in expected:
        graph.replay()
        assert torch.equal(x, step)


def test_a_host_generator_does_not_draw_on_the_device(backend: EmulatorBackend) -> None:
    with pytest.raises(RuntimeError, match="generator"):
        torch.ones(3, device="cuda").normal_(generator=torch.Generator())
