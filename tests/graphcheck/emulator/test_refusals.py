"""Whatever a capturing stream refuses is refused with its code and the user's own line."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from graphcheck.backend.emulator import EmulatorBackend
from graphcheck.errors import CaptureRefused, UnknownOperator
from graphcheck.finding import Severity

Refused = Callable[[Callable[[], Any]], CaptureRefused]


class Tensors:
    """Device and host tensors made before the capture."""

    def __init__(self) -> None:
        self.x = torch.arange(12.0, device="cuda").reshape(3, 4)
        self.row = torch.arange(4.0, device="cuda")
        self.count = torch.tensor(2, device="cuda")
        self.index = torch.tensor([0, 2], device="cuda")
        self.host = torch.zeros(3, 4)
        self.host_index = torch.tensor([0, 2])
        self.pinned = torch.zeros(3, 4).pin_memory()
        self.event = torch.cuda.Event()
        self.stream = torch.cuda.Stream()


def loop(t: Tensors) -> None:
    for _ in range(t.count):  # marked
        t.x.add_(1)


FORBIDDEN: list[tuple[str, str, Callable[[Tensors], Any]]] = [
    ("GC101", "synchronize", lambda t: torch.cuda.synchronize()),
    ("GC101", "stream synchronize", lambda t: torch.cuda.current_stream().synchronize()),
    ("GC101", "event synchronize", lambda t: t.event.synchronize()),
    ("GC101", "blocking copy from pinned memory", lambda t: t.x.copy_(t.pinned)),
    ("GC102", "item", lambda t: t.x.sum().item()),
    ("GC102", "int", lambda t: int(t.count)),
    ("GC102", "float", lambda t: float(t.row[0])),
    ("GC102", "tolist", lambda t: t.row.tolist()),
    ("GC102", "cpu", lambda t: t.x.cpu()),
    ("GC102", "to cpu", lambda t: t.x.to("cpu")),
    ("GC102", "to cpu without blocking", lambda t: t.x.to("cpu", non_blocking=True)),
    ("GC102", "numpy", lambda t: t.x.numpy()),
    ("GC102", "repr", lambda t: repr(t.x)),
    ("GC102", "format", lambda t: f"{t.count}"),
    ("GC102", "copy to pageable memory", lambda t: t.host.copy_(t.x)),
    ("GC102", "blocking copy to pinned memory", lambda t: t.pinned.copy_(t.x)),
    ("GC103", "tensor", lambda t: torch.tensor([1.0, 2.0], device="cuda")),
    ("GC103", "as_tensor", lambda t: torch.as_tensor(np.ones(3), device="cuda")),
    ("GC103", "new_tensor", lambda t: t.x.new_tensor([1.0])),
    ("GC103", "cuda", lambda t: t.host.cuda()),
    ("GC103", "to", lambda t: t.host.to("cuda", non_blocking=True)),
    ("GC103", "copy from pageable memory", lambda t: t.x.copy_(t.host, non_blocking=True)),
    ("GC104", "bool", lambda t: bool((t.x > 0).any())),
    ("GC104", "if", lambda t: 1 if t.x.sum() > 0 else 2),
    ("GC104", "max of a list", lambda t: max([t.row[0], t.row[1]])),
    ("GC104", "in", lambda t: 3.0 in t.row),
    ("GC104", "equal", lambda t: torch.equal(t.x, t.x)),
    ("GC104", "allclose", lambda t: torch.allclose(t.x, t.x)),
    ("GC105", "list index", lambda t: t.x[[0, 2]]),
    ("GC105", "list in a tuple index", lambda t: t.x[:, [0, 2]]),
    ("GC105", "array index", lambda t: t.x[np.array([0, 2])]),
    ("GC105", "host tensor index", lambda t: t.x[t.host_index]),
    ("GC105", "host tensor index of an assignment", lambda t: t.x.__setitem__(t.host_index, t.row)),
    ("GC105", "number assigned to an element", lambda t: t.row.__setitem__(2, 1.0)),
    ("GC105", "number assigned through an index", lambda t: t.x.__setitem__(t.index, 1.0)),
    ("GC106", "slice bound", lambda t: t.x[: t.count]),
    ("GC106", "loop bound", loop),
    ("GC106", "narrow", lambda t: t.x.narrow(0, 0, t.count)),
    ("GC106", "tensor_split", lambda t: torch.tensor_split(t.x, t.index)),
    ("GC107", "nonzero", lambda t: t.x.nonzero()),
    ("GC107", "one-argument where", lambda t: torch.where(t.x > 1)),
    ("GC107", "boolean mask", lambda t: t.x[t.x > 1]),
    ("GC107", "masked_select", lambda t: t.x.masked_select(t.x > 1)),
    ("GC107", "unique", lambda t: t.x.unique()),
    ("GC107", "bincount", lambda t: torch.bincount(t.index)),
    ("GC107", "one_hot", lambda t: F.one_hot(t.index)),
    ("GC107", "repeat_interleave", lambda t: t.row[:2].repeat_interleave(t.index)),
    ("GC108", "event query", lambda t: t.event.query()),
    ("GC108", "stream query", lambda t: t.stream.query()),
    ("GC601", "compile", lambda t: torch.compile(lambda x: x + 1)(t.x)),
    ("GC802", "manual_seed", lambda t: torch.manual_seed(3)),
    ("GC802", "cuda manual_seed", lambda t: torch.cuda.manual_seed(3)),
    ("GC802", "get_rng_state", lambda t: torch.cuda.get_rng_state()),
    ("GC802", "set_rng_state", lambda t: torch.cuda.set_rng_state(torch.zeros(1, dtype=torch.uint8))),
]


@pytest.mark.parametrize(("code", "name", "function"), FORBIDDEN, ids=[f"{row[0]} {row[1]}" for row in FORBIDDEN])
def test_a_forbidden_operation_is_refused_with_its_code_and_line(
    code: str, name: str, function: Callable[[Tensors], Any], refused: Refused
) -> None:
    tensors = Tensors()
    error = refused(lambda: function(tensors))
    assert error.code == code
    assert error.where is not None
    assert error.where.file == __file__
    assert error.where.line in range(function.__code__.co_firstlineno, function.__code__.co_firstlineno + 3)


ALLOWED: dict[str, Callable[[Tensors], Any]] = {
    "fill of a slice": lambda t: t.x.__setitem__(slice(0, 2), 1.0),
    "masked assignment of a number": lambda t: t.x.__setitem__(t.x > 3, 0.0),
    "device index": lambda t: t.x[t.index],
    "host scalar tensor as operand": lambda t: t.x + torch.tensor(2.0),
    "copy from pinned memory": lambda t: t.x.copy_(t.pinned, non_blocking=True),
    "upload of pinned memory": lambda t: t.pinned.to("cuda", non_blocking=True).sum(),
    "copy to pinned memory": lambda t: t.pinned.copy_(t.x, non_blocking=True),
    "repeat_interleave with its size": lambda t: t.row[:2].repeat_interleave(t.index, output_size=2).sum(),
    "one_hot with its size": lambda t: F.one_hot(t.index, 4).sum(),
    "host work": lambda t: torch.zeros(3).add_(1).tolist(),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_an_allowed_operation_is_recorded(name: str, backend: EmulatorBackend) -> None:
    tensors = Tensors()

    def region() -> dict[str, torch.Tensor]:
        ALLOWED[name](tensors)
        return {}

    recording = backend.record(region, backend.pool())
    recording.replay()
    assert recording.findings() == []


def test_outside_a_capture_all_of_it_is_allowed(backend: EmulatorBackend) -> None:
    skipped = {"set_rng_state", "numpy", "tensor_split", "repeat_interleave"}
    for _, name, function in FORBIDDEN:
        if name not in skipped:
            function(Tensors())


def test_a_swallowed_refusal_is_raised_when_the_capture_ends(backend: EmulatorBackend) -> None:
    x = torch.ones(3, device="cuda")

    def region() -> dict[str, torch.Tensor]:
        with contextlib.suppress(RuntimeError):
            x.sum().item()  # the first
        with contextlib.suppress(RuntimeError):
            torch.cuda.synchronize()
        return {"y": x + 1}

    with pytest.raises(CaptureRefused, match="GC102") as caught:
        backend.record(region, backend.pool())
    assert caught.value.where is not None
    assert "the first" in caught.value.where.source


def test_a_refusal_replaced_by_another_exception_is_still_raised(backend: EmulatorBackend) -> None:
    x = torch.ones(3, device="cuda")

    def region() -> dict[str, torch.Tensor]:
        try:
            x.sum().item()
        except RuntimeError:
            raise KeyError("fallback") from None
        return {}

    with pytest.raises(CaptureRefused, match="GC102"):
        backend.record(region, backend.pool())


def test_a_refusal_swallowed_in_a_finaliser_is_still_raised(backend: EmulatorBackend) -> None:
    class Owner:
        def __del__(self) -> None:
            with contextlib.suppress(RuntimeError):
                torch.cuda.synchronize()

    def region() -> dict[str, torch.Tensor]:
        owner = Owner()
        del owner
        return {}

    with pytest.raises(CaptureRefused, match="GC101"):
        backend.record(region, backend.pool())


def test_an_exception_of_the_region_passes_and_the_next_capture_works(backend: EmulatorBackend) -> None:
    def region() -> dict[str, torch.Tensor]:
        torch.ones(3, device="cuda")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        backend.record(region, backend.pool())
    recording = backend.record(lambda: {"y": torch.ones(3, device="cuda")}, backend.pool())
    recording.replay()
    assert recording.outputs["y"].tolist() == [1, 1, 1]


def test_pinned_memory_allocated_in_a_capture_is_a_warning(backend: EmulatorBackend) -> None:
    def region() -> dict[str, torch.Tensor]:
        torch.empty(4, pin_memory=True)
        return {}

    [finding] = backend.record(region, backend.pool()).findings()
    assert (finding.code, finding.severity) == ("GC110", Severity.WARNING)
    assert finding.where is not None
    assert "pin_memory" in finding.where.source


def test_memory_given_away_is_refused_with_its_null_address(refused: Refused) -> None:
    x = torch.ones(4, device="cuda")
    view = x[1:]
    x.untyped_storage().resize_(0)
    assert view.data_ptr() == 0
    assert refused(lambda: view + 1).code == "GC410"


def test_a_graph_that_the_collector_destroys_inside_a_capture_is_an_error(backend: EmulatorBackend) -> None:
    x = torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x + 1
    cycle: list[Any] = [graph]
    cycle.append(cycle)

    def region() -> dict[str, torch.Tensor]:
        nonlocal graph, cycle
        del graph, cycle
        gc.collect()
        return {}

    [finding] = backend.record(region, backend.pool()).findings()
    assert (finding.code, finding.severity) == ("GC606", Severity.ERROR)


def test_an_operator_without_a_meta_kernel_is_named(backend: EmulatorBackend) -> None:
    library = torch.library.Library("graphcheck_test_unknown", "FRAGMENT")
    library.define("opaque(Tensor x) -> Tensor")
    x = torch.ones(4, device="cuda")
    with pytest.raises(UnknownOperator, match=r"graphcheck_test_unknown.opaque"):
        backend.record(lambda: {"y": torch.ops.graphcheck_test_unknown.opaque(x)}, backend.pool())
    with pytest.raises(UnknownOperator, match=r"graphcheck_test_unknown.opaque"):
        torch.ops.graphcheck_test_unknown.opaque(x)
    library._destroy()


def test_host_and_device_operands_do_not_mix(backend: EmulatorBackend) -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device="cuda") + torch.ones(3)
