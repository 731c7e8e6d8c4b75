"""The catalogue: every family is there, every page can be printed, a wrong code is answered with its neighbours."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from graphcheck.catalogue import HAZARDS, lookup
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
