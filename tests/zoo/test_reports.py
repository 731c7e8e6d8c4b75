"""Every public report stands in one list, the document is in step, and lint tells snippets from their twins."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from graphcheck.catalogue import HAZARDS
from graphcheck.catalogue.reports import REPORTS
from graphcheck.lint import Settings, lint
from graphcheck.zoo.reports import ELSEWHERE, STATIC, ZOO
from graphcheck.zoo.reports.entry import Snippet
from graphcheck.zoo.reports.table import found, table

DOCUMENT = Path(__file__).parents[2] / "docs" / "reports.md"


def test_each_report_stands_in_exactly_one_list() -> None:
    """Expected: one row for each number of REPORTS, and no row without one."""
    rows = found()
    assert {number: len(row) for number, row in rows.items()} == dict.fromkeys(REPORTS, 1)
    assert sum(map(len, rows.values())) == len(ZOO) + len(STATIC) + len(ELSEWHERE)


def test_codes_are_those_that_the_catalogue_gives_the_report() -> None:
    """Expected: each row's code is the cause that the report is listed under."""
    rows = found()
    assert {number: report.codes[0] for number, report in REPORTS.items()} == {n: row[0][0] for n, row in rows.items()}
    assert [code for report in REPORTS.values() for code in report.codes if code not in HAZARDS] == []


def test_document_is_in_step() -> None:
    """Expected: docs/reports.md is what `python -m graphcheck.zoo.reports` prints."""
    assert DOCUMENT.read_text(encoding="utf-8") == table()


@pytest.mark.parametrize("snippet", STATIC, ids=lambda snippet: snippet.name)
def test_snippets_are_source_that_differs(snippet: Snippet) -> None:
    """Expected: both parse, and as different programs."""
    assert ast.dump(ast.parse(snippet.planted)) != ast.dump(ast.parse(snippet.clean))


@pytest.mark.parametrize("snippet", STATIC, ids=lambda snippet: snippet.name)
def test_lint_finds_the_snippet_and_is_silent_on_its_twin(snippet: Snippet, tmp_path: Path) -> None:
    """Expected: the code among the findings of the planted source, nothing on the clean one."""
    for name, source in (("planted", snippet.planted), ("clean", snippet.clean)):
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
    assert snippet.code in [finding.code for finding in lint([tmp_path / "planted.py"], Settings()).findings]
    assert lint([tmp_path / "clean.py"], Settings()).findings == []
