"""The catalogue: every family is there, every page can be printed, a wrong code is answered with its neighbours."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from graphcheck.catalogue import HAZARDS, lookup
from graphcheck.catalogue.checklist import CHECKLIST
from graphcheck.catalogue.pages import UNCOVERED, document, sections
from graphcheck.catalogue.reports import REPORTS
from graphcheck.errors import UnknownTarget

ROOT = Path(__file__).parents[2]
FAMILIES = {"GC1": 11, "GC2": 7, "GC3": 13, "GC4": 11, "GC5": 7, "GC6": 8, "GC7": 6, "GC8": 3, "GC90": 5, "GC95": 1}


@pytest.mark.parametrize(("family", "count"), FAMILIES.items())
def test_every_family_is_complete_and_numbered_without_a_hole(family: str, count: int) -> None:
    numbers = sorted(int(code[2:]) for code in HAZARDS if code.startswith(family))
    assert len(numbers) == count
    assert numbers == list(range(numbers[0], numbers[0] + count))


@pytest.mark.parametrize("hazard", HAZARDS.values(), ids=lambda hazard: hazard.code)
def test_every_entry_has_all_its_parts(hazard: object) -> None:
    for part in ("name", "mechanism", "symptom", "wrong", "right", "detectors", "found_by"):
        assert str(getattr(hazard, part)).strip(), part


def test_every_code_that_the_sources_report_has_a_page() -> None:
    """Expected: a code written as a string in graphcheck or msa is one of the catalogue."""
    used: dict[str, str] = {}
    for package in ("graphcheck", "msa"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Constant)
                    and isinstance(node.value, str)
                    and re.fullmatch(r"GC\d+", node.value)
                ):
                    used[node.value] = str(path)
    assert {code: path for code, path in used.items() if code not in HAZARDS} == {}


@pytest.mark.parametrize(
    ("wrong", "neighbours"),
    [
        ("GC30", "GC301, GC302"),
        ("GC399", "GC401, GC402"),
        ("GC3022", "GC302"),
        ("length", "GC101, GC993"),
        ("GC", "GC101, GC993"),
    ],
)
def test_a_wrong_code_is_answered_with_its_neighbours(wrong: str, neighbours: str) -> None:
    with pytest.raises(UnknownTarget, match=f"did you mean .*{neighbours}"):
        lookup(wrong)


def test_the_document_is_in_step() -> None:
    """Expected: docs/codes.md is what `python -m graphcheck.catalogue` prints."""
    assert (ROOT / "docs" / "codes.md").read_text(encoding="utf-8") == document()


def test_every_code_is_shown_by_the_zoo_or_lint_or_has_a_reason() -> None:
    """Expected: what the document calls uncovered is exactly what nothing covers, symptoms of the harness included."""
    from graphcheck.lint.rules import CODES
    from graphcheck.zoo import entries

    assert set(HAZARDS) - {entry.code for entry in entries()} - set(CODES) == set(UNCOVERED)


def test_checklist_and_reports_name_known_codes() -> None:
    assert {code for _, codes in CHECKLIST for code in codes} <= set(HAZARDS)
    assert len(CHECKLIST) > 40
    assert {code for report in REPORTS.values() for code in report.codes} <= set(HAZARDS)


def test_a_page_names_checklist_items_and_reports() -> None:
    parts = dict(sections(lookup("GC302")))
    assert any("padding or bucketing" in item for item in parts["On the checklist"])
    assert any("transformers/pull/45323" in report for report in parts["Public reports"])
