"""A user's operators: Python bodies are entered, kernels are opaque, unseen launches are refused."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import pytest
import torch

from graphcheck.backend.emulator import EmulatorBackend
from graphcheck.errors import CaptureRefused, UnseenLaunch


def shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    return (x + by) * 2


def peeking(x: torch.Tensor, by: int) -> torch.Tensor:
    return x * int(x.sum().item())  # the host reads


def uploading(x: torch.Tensor, by: int) -> torch.Tensor:
    return x * torch.tensor([float(by)], device=x.device)


def written(out: torch.Tensor, x: torch.Tensor) -> None:
    out.copy_(x + 1)


@pytest.fixture(scope="module")
def library() -> Iterator[torch.library.Library]:
    made = torch.library.Library("graphcheck_test", "FRAGMENT")
    for name, body in (("shifted", shifted), ("peeking", peeking), ("uploading", uploading)):
        made.define(f"{name}(Tensor x, int by) -> Tensor")
        made.impl(name, body, "CompositeExplicitAutograd")
    made.define("written(Tensor(a!) out, Tensor x) -> ()")
    made.impl("written", written, "CUDA")
    yield made
    made._destroy()


def test_a_body_is_entered_while_recording(library: torch.library.Library, backend: EmulatorBackend) -> None:
    x = torch.ones(4, device="cuda")
    recording = backend.record(lambda: {"y": torch.ops.graphcheck_test.shifted(x, 3)}, backend.pool())
    assert [operation.name for operation in recording.operations()] == ["aten.add.Tensor", "aten.mul.Tensor"]
    assert recording.operations()[0].where.function == "shifted"  # type: ignore[union-attr]
    recording.replay()
    assert recording.outputs["y"].tolist() == torch.ops.graphcheck_test.shifted(x, 3).tolist() == [8.0] * 4


def test_a_body_that_writes_its_argument_is_entered(library: torch.library.Library, backend: EmulatorBackend) -> None:
    x, out = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")

    def region() -> dict[str, torch.Tensor]:
        torch.ops.graphcheck_test.written(out, x)
        return {"out": out}

    recording = backend.record(region, backend.pool())
    assert out.tolist() == [0.0] * 4
    recording.replay()
    assert out.tolist() == [2.0] * 4


def test_a_host_read_inside_a_body_is_refused(library: torch.library.Library, backend: EmulatorBackend) -> None:
    x = torch.ones(4, device="cuda")
    assert torch.ops.graphcheck_test.peeking(x, 1).tolist() == [4.0] * 4
    with pytest.raises(CaptureRefused, match="GC102") as caught:
        backend.record(lambda: {"y": torch.ops.graphcheck_test.peeking(x, 1)}, backend.pool())
    assert caught.value.where is not None
    assert "the host reads" in caught.value.where.source


def test_an_upload_inside_a_body_is_refused(library: torch.library.Library, backend: EmulatorBackend) -> None:
    x = torch.ones(4, device="cuda")
    with pytest.raises(CaptureRefused, match="GC103"):
        backend.record(lambda: {"y": torch.ops.graphcheck_test.uploading(x, 1)}, backend.pool())


def test_custom_op_is_entered(backend: EmulatorBackend) -> None:
    @torch.library.custom_op("graphcheck_test_custom::tripled", mutates_args=())
    def tripled(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    x = torch.ones(4, device="cuda")
    assert tripled(x).tolist() == [3.0] * 4
    recording = backend.record(lambda: {"y": tripled(x)}, backend.pool())
    assert [operation.name for operation in recording.operations()] == ["aten.mul.Tensor"]
    recording.replay()
    assert recording.outputs["y"].tolist() == [3.0] * 4


def test_memory_handed_to_other_libraries_is_refused(backend: EmulatorBackend) -> None:
    x = torch.ones(4, device="cuda")
    with pytest.raises(UnseenLaunch, match="__cuda_array_interface__"):
        x.__cuda_array_interface__  # noqa: B018
    with pytest.raises(UnseenLaunch, match="DLPack"):
        x.__dlpack__()


def test_a_triton_launch_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class JITFunction:
        def __init__(self, fn: object) -> None:
            self.fn = fn

        def run(self, *args: object) -> None:
            raise AssertionError("launched")

    def kernel() -> None: ...

    runtime = types.ModuleType("triton.runtime")
    runtime.JITFunction = JITFunction  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton.runtime", runtime)
    before = JITFunction.run
    with EmulatorBackend().active(), pytest.raises(UnseenLaunch, match="Triton kernel kernel"):
        JITFunction(kernel).run(torch.ones(3, device="cuda"))
    assert JITFunction.run is before
