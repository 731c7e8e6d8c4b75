"""The repository itself: planted components are found, clean twins and shipped code are silent."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from graphcheck.finding import Finding
from graphcheck.lint import Settings, lint
from graphcheck.zoo import entries, reports

ROOT = Path(__file__).parents[3]
REPORTED = reports.ZOO

# What only running the component can show: contents, arithmetic, budgets, capacities, who calls first, and what the
# collector and other allocators do.
NOT_STATIC = {
    "GC207": {"fans-out"},  # how many streams are too many is a count of the graph's branches
    "GC311": {"eagle3-key-lacks-draft-length"},  # the variant chooses buffers by their names
    "GC312": {
        "reads-uniform-stride",
        "msa-keeps-staged-table",
        "msa-plans-staged",
        "eagle3-applies-offsets-twice",
        "eagle3-forgets-extra-tokens",
        "eagle3-keeps-verify-lengths",
        "eagle3-puts-dummies-first",
    },
    "GC405": {"msa-builds-on-first-use"},
    "GC411": {"shares-workspace"},  # which graph dies first
    "GC501": {"eagle3-keeps-counts"},  # with several graphs in a pool it is called GC502
    "GC502": {"hands-out-both"},  # the line is that of shares-pool, and a line is reported once
    "GC504": {"borrows-from-arena"},  # who else is given the block is the arena's doing
    "GC505": {"over-budget", "msa-expands-all-heads"},
    "GC506": {"keeps-output-of-each"},  # bytes over all graphs
    "GC602": {"eagle3-corrects-once"},  # the flag is set behind two calls of another object
    "GC604": {"eagle3-corrects-again-in-warmup"},  # the staged lengths belong to an object out of a dict
    "GC605": {"calibrates-three-times"},  # how many warm-up runs suffice
    "GC606": {"drops-graph-inside"},  # when the collector runs
    "GC608": {"serves-bucket-elsewhere"},  # what is never replayed
    "GC701": {"cuts-to-bucket"},  # a cut batch looks like a selected one
    "GC702": {"eagle3-leaves-old-rows"},  # every row is staged, some from what was there before
    "GC703": {"eagle3-advances-padding"},  # the index is made of lengths
    "GC704": {"leaks-unwritten", "reads-unstaged"},
    "GC706": {"exceeds-capacity"},  # how large a case gets
    "GC803": {"draws-on-request"},  # what the eager engine draws
    "GC951": {"sums-another-way", "msa-merges-backward", "msa-splits-by-rows"},  # the last bits of two right sums
}

# Public reports whose planted component lint does not see under its code: a key that is a sum, layouts, what a loop leaves
# out, the collector; and a tail that no refresh writes (GC702), of which only running it shows that nothing ever did.
REPORTS_NOT_SEEN = {
    "b001-longest-key-not-in-graph-key",
    "b011-padded-grid-follows-unwritten-tiles",
    "b005-ragged-draft-extend-offsets",
    "b031-host-buffer-is-source-and-destination",
    "b057-empty-padding-rows-give-nan",
    "b039-forced-sampling-survives-capture",
    "b049-two-variants-share-metadata-slot",
    "b085-result-block-handed-to-second-graph",
    "b035-hidden-tensor-missed-by-reload",
    "b081-old-graph-collected-in-capture",
}


@pytest.fixture(scope="module")
def findings() -> list[Finding]:
    """What lint says of everything that ships, with paths below the root."""
    return lint([ROOT / "graphcheck", ROOT / "msa", ROOT / "eagle3"], Settings()).findings


def of_class(findings: list[Finding], name: str) -> list[Finding]:
    """Findings whose region belongs to a class."""
    return [found for found in findings if found.place.split(" ")[0] == f"{name}.run"]


def test_shipped_code_outside_the_zoos_is_silent(findings: list[Finding]) -> None:
    """Expected: nothing, and no suppression comment that would hide something."""
    assert [str(found.where) for found in findings if found.where and f"{Path('zoo')}" not in found.where.file] == []
    for package in ("graphcheck", "msa", "eagle3"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if "graphcheck: ignore[" in text:
                assert {"lint", "catalogue"} & set(path.parts), path


@pytest.mark.parametrize("entry", [entry for entry in entries() if entry.code < "GC96"], ids=lambda entry: entry.name)
def test_planted_components_are_found_and_their_twins_are_silent(entry: object, findings: list[Finding]) -> None:
    """Expected: the planted class gives its code, unless only running it can show that; the twin gives nothing."""
    planted, clean = entry.planted.__name__, entry.clean.__name__  # type: ignore[attr-defined]
    code, name = entry.code, entry.name  # type: ignore[attr-defined]
    assert of_class(findings, clean) == []
    codes = {found.code for found in of_class(findings, planted)}
    if name in NOT_STATIC.get(code, ()) or (entry in REPORTED and name in REPORTS_NOT_SEEN):
        assert code not in codes
    else:
        assert code in codes


def test_linting_needs_no_module_beyond_the_standard_library() -> None:
    """Expected: the linter's own files import the standard library and graphcheck only (and tomli before 3.11)."""
    import sys

    for path in (ROOT / "graphcheck" / "lint").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for module in names:
                assert module.split(".")[0] in {*sys.stdlib_module_names, "graphcheck", "tomli"}
