"""Inspection of real graphs: every pointer argument has a class."""

from __future__ import annotations

from pathlib import Path

from graphcheck.finding import Severity
from graphcheck.graph.segments import FOREIGN, FREED, POOL, STATIC
from graphcheck.inspector import inspect
from graphcheck.registry import resolve
from graphcheck.strategies import sample

WATCHED = Path(__file__).parent / "watched.py"


def test_a_decode_step_points_at_its_buffers_and_its_pool_only() -> None:
    component = resolve("msa.decode")
    found = inspect(component, sample(component), backend="cuda")
    owners = {word.span.owner for word in found.words}
    assert {STATIC, POOL} <= owners
    assert not {FOREIGN, FREED} & owners
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
