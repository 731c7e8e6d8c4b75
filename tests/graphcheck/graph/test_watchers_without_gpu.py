"""What of the CUDA watchers needs no device: patched functions, memory nodes, and which code an error deserves."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from graphcheck.backend.cuda.compiling import Compilations
from graphcheck.backend.cuda.foreign import DEVICE, ORDERED, ForeignAllocations, Request
from graphcheck.backend.cuda.oplog import Log, described
from graphcheck.backend.cuda.random_state import RandomState
from graphcheck.backend.cuda.refusal import ADVICE, is_exhausted, refused
from graphcheck.catalogue import HAZARDS
from graphcheck.finding import Severity
from graphcheck.graph.nodes import MEM_ALLOC, MEM_FREE, Node


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A stand-in for ``cuda.bindings.runtime`` that counts what reaches it."""
    module: Any = ModuleType("cuda.bindings.runtime")
    module.asked = []
    module.cudaMalloc = lambda size: module.asked.append(size)
    module.cudaMallocAsync = lambda size, stream: module.asked.append(size)
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", module)
    return module


def test_requests_are_noted_with_their_line_and_reach_the_library(runtime: Any) -> None:
    original = runtime.cudaMalloc
    with ForeignAllocations() as foreign:
        runtime.cudaMalloc(64)
        runtime.cudaMallocAsync(32, 0)
    assert runtime.asked == [64, 32]
    assert [request.kind for request in foreign.requests] == [DEVICE, ORDERED]
    where = foreign.requests[0].where
    assert where is not None
    assert "cudaMalloc(64)" in where.source
    assert runtime.cudaMalloc is original


def test_functions_are_put_back_when_the_region_raises(runtime: Any) -> None:
    original = runtime.cudaMalloc
    with pytest.raises(ZeroDivisionError), ForeignAllocations():
        raise ZeroDivisionError
    assert runtime.cudaMalloc is original


def test_memory_nodes_carry_the_line_of_the_request(runtime: Any) -> None:
    nodes = [Node(0, MEM_ALLOC, nbytes=4096), Node(1, MEM_FREE)]
    with ForeignAllocations() as foreign:
        runtime.cudaMallocAsync(4096, 0)
    (finding,) = foreign.findings(nodes)
    assert finding.code == "GC409"
    assert finding.where is not None
    assert "cudaMallocAsync" in finding.got


def test_memory_nodes_that_nobody_was_seen_to_ask_for_are_found_all_the_same() -> None:
    (finding,) = ForeignAllocations().findings([Node(3, MEM_ALLOC, nbytes=8)])
    assert (finding.code, finding.where) == ("GC409", None)


def test_seeding_in_the_region_is_named_with_its_line() -> None:
    before = torch.manual_seed
    with RandomState() as state:
        torch.manual_seed(3)
    (finding,) = state.findings()
    assert (finding.code, finding.severity) == ("GC802", Severity.ERROR)
    assert finding.where is not None
    assert "manual_seed(3)" in finding.where.source
    assert torch.manual_seed is before


def test_a_compilation_is_named_after_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Expected: the hook that was there is called as well, and put back."""
    seen: list[str] = []
    runtime = SimpleNamespace(jit_post_compile_hook=lambda **described: seen.append("before"))
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(knobs=SimpleNamespace(runtime=runtime)))
    original = runtime.jit_post_compile_hook
    with Compilations() as compilations:
        runtime.jit_post_compile_hook(fn=SimpleNamespace(name="row_sum"))
    (finding,) = compilations.findings()
    assert finding.code == "GC601"
    assert "row_sum" in finding.message
    assert seen == ["before"]
    assert runtime.jit_post_compile_hook is original


@pytest.mark.parametrize(
    ("text", "function", "operator", "code"),
    [
        ("operation not permitted when stream is capturing", "__bool__", "aten._local_scalar_dense.default", "GC104"),
        ("operation not permitted when stream is capturing", "item", "aten._local_scalar_dense.default", "GC102"),
        ("operation not permitted when stream is capturing", "cpu", "aten._to_copy.default", "GC102"),
        ("operation not permitted when stream is capturing", "tensor", "aten.lift_fresh.default", "GC103"),
        ("operation not permitted when stream is capturing", "nonzero", "aten.nonzero.default", "GC107"),
        ("Cannot copy between CPU and CUDA", "__getitem__", "aten.index.Tensor", "GC105"),
        ("capture ended with unjoined work", "", "", "GC202"),
        ("dependency created on uncaptured work: cudaErrorStreamCaptureIsolation", "", "", "GC203"),
        ("Search for `cudaErrorStreamCaptureImplicit'", "add_", "aten.add_.Tensor", "GC111"),
        (
            "Attempt to increase offset for a CUDA generator not in capture mode.",
            "rand",
            "aten.rand.generator",
            "GC801",
        ),
        ("something else", "", "", "GC608"),
    ],
)
def test_an_error_of_a_capture_gets_its_code(text: str, function: str, operator: str, code: str) -> None:
    log = Log(current=operator, function=function)
    assert refused(RuntimeError(text), log).code == code


def test_a_capture_that_fails_after_a_foreign_request_blames_the_request() -> None:
    request = Request(DEVICE, "cuda.bindings.runtime.cudaMalloc", None)
    found = refused(RuntimeError("operation failed due to a previous error during capture"), Log(), [request])
    assert found.code == "GC505"
    assert "cudaMalloc" in found.what


def test_exhausted_memory_is_no_refusal() -> None:
    assert is_exhausted(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_exhausted(RuntimeError("operation not permitted when stream is capturing"))


def test_every_advice_is_for_a_code_of_the_catalogue() -> None:
    assert set(ADVICE) <= set(HAZARDS)


def test_arguments_are_described_as_on_the_emulators_tape() -> None:
    """Expected: dtype, extents, strides, offset: differential capture reads both backends alike."""
    assert described(torch.empty(4, 6, dtype=torch.bfloat16)[1:, 2:]) == "bfloat16[3, 4] stride [6, 1] offset 8"
