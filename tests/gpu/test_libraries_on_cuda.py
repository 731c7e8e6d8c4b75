"""CuPy and cuda.core: the frozen bound is found, the clean twin is silent, whoever captures."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphcheck import fuzz
from graphcheck.finding import Severity, Verdict
from graphcheck.registry import resolve

LIBRARIES = Path(__file__).parent / "libraries.py"


@pytest.mark.parametrize("name", ["ThroughCupy", "CapturedByCupy", "ThroughCore", "CapturedByCore"])
def test_clean_components_pass(name: str) -> None:
    target = fuzz(resolve(f"{LIBRARIES}:{name}"), backend="cuda", examples=20, seed=1).targets[0]
    assert [finding for finding in target.findings if finding.severity is not Severity.NOTE] == []
    assert target.verdict is Verdict.PASS


@pytest.mark.parametrize(
    "name", ["ThroughCupyFrozen", "CapturedByCupyFrozen", "ThroughCoreFrozen", "CapturedByCoreFrozen"]
)
def test_a_frozen_bound_is_found(name: str) -> None:
    """Expected: GC301 or GC302, a host value frozen into the launch."""
    target = fuzz(resolve(f"{LIBRARIES}:{name}"), backend="cuda", examples=20, seed=1).targets[0]
    assert target.verdict is Verdict.FAIL
    assert target.findings[0].code in ("GC301", "GC302"), [f"{f.code}: {f.message}" for f in target.findings]


def test_memory_of_cupys_pool_inside_the_capture_is_found() -> None:
    target = fuzz(resolve(f"{LIBRARIES}:AllocatesInCupy"), backend="cuda", examples=5, seed=1).targets[0]
    assert target.findings[0].code == "GC405"
    assert target.findings[0].where is not None
