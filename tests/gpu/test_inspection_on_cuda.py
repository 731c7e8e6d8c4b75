"""Inspection of real graphs: every pointer argument has a class."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphcheck.finding import Severity
from graphcheck.graph.segments import FOREIGN, POOL, STATIC, WORKSPACE
from graphcheck.inspector import inspect
from graphcheck.registry import resolve
from graphcheck.strategies import sample

WATCHED = Path(__file__).parent / "watched.py"


@pytest.mark.parametrize(("name", "expected"), [("msa.decode", {STATIC}), ("eagle3.accept", {STATIC, POOL})])
def test_a_step_points_at_its_buffers_and_where_it_allocates_at_its_pool(name: str, expected: set[str]) -> None:
    """The decode step's kernels allocate nothing; acceptance is made of torch's operators."""
    component = resolve(name)
    found = inspect(component, sample(component), backend="cuda")
    owners = {word.span.owner for word in found.words}
    assert owners - {WORKSPACE} == expected
    assert not [node for node in found.nodes if node.kind.startswith("mem_")]
    assert [finding for finding in found.findings if finding.severity is not Severity.NOTE] == []


def test_a_tensor_that_no_buffer_names_is_foreign() -> None:
    component = resolve(f"{WATCHED}:ReadsAGlobal")
    found = inspect(component, sample(component), backend="cuda")
    assert FOREIGN in {word.span.owner for word in found.words}
    assert [finding.code for finding in found.findings if finding.severity is Severity.WARNING] == ["GC401"]


def test_memory_nodes_are_listed() -> None:
    component = resolve(f"{WATCHED}:AllocatesInStreamOrder")
    found = inspect(component, sample(component), backend="cuda")
    assert {"mem_alloc", "mem_free"} <= {node.kind for node in found.nodes}
    assert found.exit_code == 1
