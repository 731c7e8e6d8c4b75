"""Every code that lint covers: found where it is planted, silent on the clean twin."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from graphcheck.catalogue import HAZARDS
from graphcheck.lint import CODES, Settings, lint

FILES = ("planted_early.py", "planted_late.py", "planted_forms.py")
READ = [runpy.run_path(str(Path(__file__).with_name(name)))["CASES"] for name in FILES]
CASES = {
    code: [pair for cases in READ for pair in cases.get(code, ())]
    for code in {code for cases in READ for code in cases}
}

# A pinned temporary inside the region is an allocation of its own.
ALSO = {"GC407": {"GC110"}}

PLANTED = [
    pytest.param(code, wrong, right, id=f"{code}-{number}")
    for code, pairs in sorted(CASES.items())
    for number, (wrong, right) in enumerate(pairs)
]


def found(source: str, path: Path) -> list[str]:
    """Codes that lint reports for a source, in order."""
    path.write_text(source)
    return [finding.code for finding in lint([path], Settings()).findings]


@pytest.mark.parametrize(("code", "wrong", "right"), PLANTED)
def test_a_planted_hazard_is_found_and_its_twin_is_silent(code: str, wrong: str, right: str, tmp_path: Path) -> None:
    """Expected: the planted source gives its code and nothing else; the twin gives nothing at all."""
    codes = set(found(wrong, tmp_path / "planted.py"))
    assert code in codes
    assert codes - {code} <= ALSO.get(code, set())
    assert found(right, tmp_path / "clean.py") == []


def test_every_code_has_a_planted_case() -> None:
    """Expected: no rule without a test; the tool's own codes about comments are tested elsewhere."""
    assert set(CODES) - {"GC990", "GC991", "GC992"} == set(CASES)


def test_every_code_has_a_page() -> None:
    assert [code for code in CODES if code not in HAZARDS] == []
