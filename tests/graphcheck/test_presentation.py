"""How results are printed: every part of a finding, brackets as they are, a command that can be copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphcheck.cli.present import show_target
from graphcheck.finding import Finding, Location, RungStatus, Severity
from graphcheck.pytest_plugin import describe
from graphcheck.report import TargetReport

FINDING = Finding(
    code="GC302",
    message="out[/b] keeps [red] and :smile:",
    where=Location(__file__, 1),
    place="replay 2, out[3]",
    expected="1.0",
    got="2.0",
    advice="mask by kv_lens[:]",
    evidence=("captured at 3: gone",),
)


def entry(finding: Finding, repro: Path | None = None) -> TargetReport:
    made = TargetReport("some.module:Thing", "emulator", findings=[finding], repro=repro)
    made.rungs["eager"] = RungStatus.FAILED
    made.conclude()
    return made


def test_every_part_of_a_finding_is_printed_and_brackets_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    show_target(entry(FINDING, Path("two words/[x].json")))
    out = capsys.readouterr().out
    for words in ("FAIL", "some.module:Thing", "GC302 error", FINDING.message, FINDING.place, FINDING.expected):
        assert words in out
    for words in (FINDING.got, FINDING.advice, *FINDING.evidence, "eager         failed"):
        assert words in out
    assert "again: graphcheck replay 'two words/[x].json'" in out


def test_a_note_is_brief_and_denies_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    note = Finding(code="GC505", message="allocates", severity=Severity.NOTE, advice="preallocate")
    show_target(entry(note))
    out = capsys.readouterr().out
    assert "GC505 note" in out
    assert "preallocate" not in out
    assert "FAIL" not in out


def test_requests_of_a_trace_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    made = entry(FINDING)
    made.counts.requests, made.counts.refused_requests = 200, 3
    show_target(made)
    assert "3 of 200 requests of the trace refused (1.5%)" in capsys.readouterr().out


def test_a_failing_test_says_the_same() -> None:
    text = describe(entry(FINDING, Path("a.json")))
    for words in (FINDING.message, FINDING.place, FINDING.expected, FINDING.got, FINDING.advice, *FINDING.evidence):
        assert words in text
    assert "again: graphcheck replay a.json" in text
    assert "again" not in describe(entry(FINDING, Path("a.json")), again=False)
