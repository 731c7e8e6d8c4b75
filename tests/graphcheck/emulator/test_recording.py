"""A recording does not execute, keeps addresses, and tells what was allocated and touched."""

from __future__ import annotations

import gc

import pytest
import torch

from graphcheck.backend.emulator import EmulatorBackend
from graphcheck.errors import ReplayFailed, UnknownOperator


def test_recording_leaves_data_alone(backend: EmulatorBackend) -> None:
    x = torch.zeros(3, device="cuda")
    recording = backend.record(lambda: {"x": x.add_(1)}, backend.pool())
    assert x.tolist() == [0, 0, 0]
    recording.replay()
    recording.replay()
    assert x.tolist() == [2, 2, 2]


def test_outputs_hold_poison_until_the_first_replay(backend: EmulatorBackend) -> None:
    x = torch.zeros(3, device="cuda")
    recording = backend.record(lambda: {"y": x + 1}, backend.pool())
    assert recording.outputs["y"].isnan().all()
    recording.replay()
    assert recording.outputs["y"].tolist() == [1, 1, 1]


def test_uninitialised_memory_holds_poison(backend: EmulatorBackend) -> None:
    assert torch.empty(5, device="cuda").isnan().all()
    assert torch.empty(5, device="cuda", dtype=torch.bfloat16).isnan().all()
    assert torch.empty(5, device="cuda", dtype=torch.int32).tolist() == [0x7FFA7FFA] * 5
    assert torch.empty_like(torch.zeros(2, 2, device="cuda")).isnan().all()


def test_a_recording_keeps_no_tensor_alive(backend: EmulatorBackend) -> None:
    # What tests before this one left in cycles is not counted.
    gc.collect()
    before = torch.cuda.memory_allocated()
    x = torch.zeros(300, device="cuda")
    recording = backend.record(lambda: {"y": x + 1}, backend.pool())
    x = torch.zeros(0)
    gc.collect()
    assert torch.cuda.memory_allocated() == before
    recording.close()


def test_operations_hold_scalars_and_geometry_by_name(backend: EmulatorBackend) -> None:
    x = torch.zeros(4, 8, device="cuda")
    recording = backend.record(lambda: {"y": torch.add(x[1:3], 2.5, alpha=3)}, backend.pool())
    [operation] = recording.operations()
    assert operation.name == "aten.add.Tensor"
    assert dict(operation.scalars) == {"other": "2.5", "alpha": "3"}
    assert dict(operation.geometry) == {"self": "float32[2, 8] stride [8, 1] offset 8"}
    assert operation.where is not None
    assert "alpha=3" in operation.where.source


def test_two_records_of_one_region_are_equal(backend: EmulatorBackend) -> None:
    x = torch.zeros(4, 8, device="cuda")

    def region() -> dict[str, torch.Tensor]:
        return {"y": (x * 2).softmax(-1).sum()}

    first, second = (backend.record(region, backend.pool()) for _ in range(2))
    assert first.operations() == second.operations()


def test_allocations_are_classed_and_have_lines(backend: EmulatorBackend) -> None:
    x = torch.zeros(256, device="cuda")
    kept: list[torch.Tensor] = []

    def region() -> dict[str, torch.Tensor]:
        y = x + 1
        kept.append(y * 2)  # escapes
        return {"out": (y + 3)[:4]}

    recording = backend.record(region, backend.pool())
    assert [(a.nbytes, a.kind) for a in recording.allocations()] == [
        (1024, "transient"),
        (1024, "escaping"),
        (1024, "output"),
    ]
    assert recording.peak_pool_bytes() == 3072
    [finding] = recording.findings()
    assert finding.code == "GC405"
    assert finding.where is not None
    assert "escapes" in finding.where.source


def test_what_only_a_cycle_keeps_alive_does_not_escape(backend: EmulatorBackend) -> None:
    x = torch.zeros(256, device="cuda")

    def region() -> dict[str, torch.Tensor]:
        cycle: list[object] = [x + 1]
        cycle.append(cycle)
        return {}

    assert backend.record(region, backend.pool()).findings() == []


def test_writing_into_buffers_allocates_nothing(backend: EmulatorBackend) -> None:
    x, out = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
    recording = backend.record(lambda: {"out": torch.mul(x, 2, out=out)}, backend.pool())
    assert recording.allocations() == []
    recording.replay()
    assert out.tolist() == [2, 2, 2, 2]


def test_externals_say_what_is_read_and_written(backend: EmulatorBackend) -> None:
    x, y, out = (torch.ones(4, device="cuda") for _ in range(3))
    staging = torch.ones(4).pin_memory()

    def region() -> dict[str, torch.Tensor]:
        y.copy_(staging, non_blocking=True)
        return {"out": out.copy_(x + y)}

    externals = {e.address: (e.tag, e.reads, e.writes) for e in backend.record(region, backend.pool()).externals()}
    assert externals == {
        x.data_ptr(): ("device", True, False),
        y.data_ptr(): ("device", True, True),
        out.data_ptr(): ("device", False, True),
        staging.data_ptr(): ("pinned", True, False),
    }


def test_undeclared_writes_are_whole_allocations(backend: EmulatorBackend) -> None:
    state, out = torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda")

    def region() -> dict[str, torch.Tensor]:
        state[2:4].add_(1)
        return {"out": out.fill_(3)}

    recording = backend.record(region, backend.pool())
    [written] = recording.undeclared_writes([out[:1]])
    assert (written.dtype, written.numel(), written.data_ptr()) == (torch.uint8, 32, state.data_ptr())
    assert recording.undeclared_writes([out, state]) == []


def test_a_failing_replay_names_the_operation_and_the_line(backend: EmulatorBackend) -> None:
    x, index = torch.zeros(4, device="cuda"), torch.zeros(2, dtype=torch.long, device="cuda")
    recording = backend.record(lambda: {"y": x.index_select(0, index)}, backend.pool())
    index.fill_(99)
    with pytest.raises(ReplayFailed, match=r"aten.index_select.default.*test_recording.py"):
        recording.replay()


def test_a_closed_graph_does_not_replay(backend: EmulatorBackend) -> None:
    recording = backend.record(lambda: {"y": torch.ones(3, device="cuda")}, backend.pool())
    recording.close()
    with pytest.raises(ReplayFailed, match="reset"):
        recording.replay()


def test_the_first_operation_that_differs_is_named(backend: EmulatorBackend) -> None:
    x = torch.ones(4, device="cuda")
    factor = 2.0

    def region() -> dict[str, torch.Tensor]:
        y = x + 1
        return {"y": (y * factor).sum()}

    recording = backend.record(region, backend.pool())
    assert backend.first_difference(recording, region) is None
    factor = 3.0
    difference = backend.first_difference(recording, region)
    assert difference is not None
    assert "operation 1, aten.mul.Tensor" in difference


def test_eager_writes_are_seen(backend: EmulatorBackend) -> None:
    x, y = torch.ones(4, device="cuda"), torch.ones(4, device="cuda")

    def region() -> None:
        z = x + y
        z.add_(1)
        y[1:].copy_(z[1:])

    _, written = backend.elements_written(region, {"x": x, "y": y})
    assert written is not None
    assert {name: elements.tolist() for name, elements in written.items()} == {
        "x": [False] * 4,
        "y": [False, True, True, True],
    }


def test_guard_bands_show_a_write_outside(backend: EmulatorBackend) -> None:
    x = torch.zeros(4, device="cuda")
    assert backend.damaged_guards() == []
    x._handle.block.guards()[1][0] = 1  # type: ignore[attr-defined]
    [finding] = backend.damaged_guards()
    assert finding.code == "GC962"
    assert backend.damaged_guards() == []


def test_user_code_captures_with_torch_cuda_graph(backend: EmulatorBackend) -> None:
    x = torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        y = x + 1
    assert not torch.cuda.is_current_stream_capturing()
    x.fill_(4)
    graph.replay()
    assert y.tolist() == [5, 5, 5, 5]
    second = torch.cuda.CUDAGraph()
    with torch.cuda.graph(second, pool=graph.pool()):
        z = y * 2
    second.replay()
    assert z.tolist() == [10, 10, 10, 10]


def test_a_capture_on_the_default_stream_is_an_error(backend: EmulatorBackend) -> None:
    with pytest.raises(RuntimeError, match="non-default stream"):
        torch.cuda.CUDAGraph().capture_begin()


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_an_out_argument_of_another_shape_gets_new_memory(backend: EmulatorBackend) -> None:
    x = torch.ones(2, 3, device="cuda")
    for out in (torch.empty(0, device="cuda"), torch.empty(5, device="cuda")):
        torch.mul(x, 2, out=out)
        assert (out + 1).tolist() == [[3.0] * 3] * 2
    small = torch.empty(5, device="cuda")
    with pytest.raises(UnknownOperator, match="would resize out"):
        backend.record(lambda: {"out": torch.mul(x, 2, out=small)}, backend.pool())
