"""The emulated surface of torch: there while active, gone afterwards."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.cuda import CUDAGraph, Event, ExternalStream, Stream, StreamContext, graph

from graphcheck.backend.emulator import EmulatorBackend
from graphcheck.errors import EnvironmentUnable

CLASSES = (Stream, ExternalStream, StreamContext, Event, CUDAGraph, graph)


def surface() -> dict[str, Any]:
    places = {
        "torch": torch,
        "cuda": torch.cuda,
        "graphs": torch.cuda.graphs,
        "streams": torch.cuda.streams,
        "random": torch.cuda.random,
        "accelerator": torch.accelerator,
        **{kind.__name__: kind for kind in CLASSES},
    }
    return {f"{place}.{name}": id(value) for place, owner in places.items() for name, value in vars(owner).items()}


def test_everything_is_undone_on_exit() -> None:
    with EmulatorBackend().active():
        pass
    before = surface()
    with EmulatorBackend().active():
        assert surface() != before
        torch.ones(3, device="cuda")
    assert surface() == before
    assert torch.overrides._len_torch_function_stack() == 0
    assert torch._C._len_torch_dispatch_stack() == 0
    if not torch.backends.cuda.is_built():
        with pytest.raises((AssertionError, RuntimeError)):
            torch.ones(3, device="cuda")


@pytest.mark.parametrize("kind", CLASSES)
def test_a_class_takes_the_arguments_that_it_took_before(kind: type) -> None:
    """A ``__new__`` that is set and deleted leaves ``object``'s behind, which then takes none."""
    own = "__new__" in vars(kind)
    with EmulatorBackend().active():
        assert ("__new__" in vars(kind)) is own

    class Probe(kind):  # type: ignore[misc]
        def __init__(self, *arguments: object) -> None:
            self.given = arguments

    if not own:
        assert Probe(1, 2).given == (1, 2)


def test_everything_is_undone_after_an_exception_inside_a_capture() -> None:
    before = surface()

    def broken() -> None:
        with EmulatorBackend().active():
            torch.cuda.set_stream(torch.cuda.Stream())
            torch.cuda.CUDAGraph().capture_begin()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert surface() == before
    with EmulatorBackend().active():
        assert not torch.cuda.is_current_stream_capturing()
        assert torch.cuda.current_stream() is torch.cuda.default_stream()


def test_nothing_is_patched_by_making_a_backend() -> None:
    before = surface()
    EmulatorBackend()
    assert surface() == before


def test_nested_activations_share_one_device() -> None:
    emulator = EmulatorBackend()
    before = surface()
    with emulator.active():
        x = torch.ones(3, device="cuda")
        with EmulatorBackend().active():
            x.add_(1)
        assert x.tolist() == [2.0] * 3
    assert surface() == before


def test_a_device_tensor_outside_is_an_error_that_says_so() -> None:
    with EmulatorBackend().active():
        x = torch.ones(3, device="cuda")
    with pytest.raises(EnvironmentUnable, match="not active"):
        x + 1


def test_classes_imported_before_make_emulated_objects(backend: EmulatorBackend) -> None:
    x = torch.ones(3, device="cuda")
    side = Stream()
    captured = CUDAGraph()
    with graph(captured):
        side.wait_stream(torch.cuda.current_stream())
        with StreamContext(side):
            assert torch.cuda.current_stream() is side
            x.add_(1)
        torch.cuda.current_stream().wait_event(side.record_event(Event()))
    captured.replay()
    assert x.tolist() == [2.0] * 3


def test_the_device_describes_itself(backend: EmulatorBackend) -> None:
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 1
    assert torch.cuda.current_device() == 0
    assert torch.cuda.get_device_capability() == (9, 0)
    assert torch.cuda.get_device_properties(0).total_memory > 0
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total
    before = torch.cuda.memory_allocated()
    x = torch.empty(1024, device="cuda")
    assert torch.cuda.memory_allocated() == before + 4096
    del x
    assert torch.cuda.memory_allocated() == before
    with torch.cuda.device(0):
        torch.cuda.empty_cache()


def test_factories_and_transfers_stay_on_their_device(backend: EmulatorBackend) -> None:
    host = torch.arange(6.0)
    for made in (
        host.cuda(),
        host.to("cuda"),
        host.to(torch.device("cuda", 0), torch.float64),
        torch.tensor([1, 2], device="cuda"),
        torch.as_tensor(host, device="cuda"),
        torch.empty_like(host, device="cuda"),
        torch.randn(3, device="cuda"),
        torch.arange(3, device="cuda"),
        host.cuda().new_zeros(3),
        host.cuda().new_tensor([1.0]),
        torch.linspace(0, 1, 5, device="cuda"),
    ):
        assert made.device == torch.device("cuda:0")
        assert made.is_cuda
        assert made.cpu().device.type == "cpu"
    assert torch.equal(host.cuda().cpu(), host)
    assert host.cuda().to(host).device.type == "cpu"
    assert torch.zeros(3).device.type == "cpu"


def test_pinned_memory_is_known(backend: EmulatorBackend) -> None:
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert torch.zeros(3, pin_memory=True).is_pinned()
    assert torch.tensor([1.0], pin_memory=True).is_pinned()
    assert torch.ones(3).pin_memory()[1:].is_pinned()
    assert not torch.ones(3).is_pinned()
    assert not torch.ones(3, device="cuda").is_pinned()


def test_modules_live_on_the_device(backend: EmulatorBackend) -> None:
    made = torch.nn.Linear(4, 4, device="cuda")
    moved = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    expected = moved(torch.ones(2, 4))
    moved.cuda()
    assert torch.equal(moved(torch.ones(2, 4, device="cuda")).cpu(), expected)
    assert torch.equal(copy.deepcopy(moved).to("cpu")(torch.ones(2, 4)), expected)
    for module in (made, moved):
        for parameter in module.parameters():
            assert isinstance(parameter, torch.nn.Parameter)
            assert parameter.is_cuda
    target = torch.nn.Linear(4, 4, device="cuda")
    target.load_state_dict(made.state_dict())
    assert torch.equal(target.weight, made.weight)


def test_autocast_and_inference_mode_work(backend: EmulatorBackend) -> None:
    x = torch.ones(4, 4, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
    layer = torch.nn.Linear(4, 4, device="cuda")
    with torch.inference_mode():
        y = layer(x).clone()
        buffer = torch.zeros(4, 4, device="cuda")
        recording = backend.record(lambda: {"y": layer(x)}, backend.pool())
    recording.replay()
    buffer.copy_(recording.outputs["y"])
    assert torch.equal(buffer, y)
    assert not layer.weight.grad_fn
