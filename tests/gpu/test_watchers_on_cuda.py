"""What only a real device shows while a region is captured."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphcheck import Component, fuzz
from graphcheck.finding import Severity, Verdict
from graphcheck.registry import resolve

HERE = Path(__file__).parent


def made(name: str) -> Component:
    return resolve(f"{HERE / 'watched.py'}:{name}")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("AllocatesInStreamOrder", "GC409"),
        ("AllocatesFromTheRuntime", "GC505"),
        ("Collects", "GC606"),
        ("CompilesInCapture", "GC601"),
        ("WritesPastTheEnd", "GC962"),
    ],
)
def test_the_cause_is_named_first_with_its_line(name: str, code: str) -> None:
    target = fuzz(made(name), backend="cuda", examples=5, seed=1).targets[0]
    assert target.verdict is Verdict.FAIL
    assert target.findings[0].code == code, [f"{finding.code}: {finding.message}" for finding in target.findings]
    if code != "GC962":
        assert target.findings[0].where is not None
        assert target.findings[0].where.file.endswith(("watched.py", "zoo/warmup.py"))


def test_pinned_memory_in_the_region_is_a_warning() -> None:
    target = fuzz(made("PinsMemory"), backend="cuda", examples=5, seed=1).targets[0]
    loud = [finding for finding in target.findings if finding.severity is Severity.WARNING]
    assert [finding.code for finding in loud] == ["GC110"]


def test_a_kernel_that_was_compiled_before_is_silent() -> None:
    target = fuzz(made("ThroughTriton"), backend="cuda", examples=5, seed=1).targets[0]
    assert target.verdict is Verdict.PASS
    assert target.findings == []
