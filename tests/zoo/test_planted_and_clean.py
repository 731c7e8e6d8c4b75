"""Every planted defect is found with its cause code first and shrunk; every clean twin stays silent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from graphcheck.backend import resolve
from graphcheck.catalogue import HAZARDS
from graphcheck.finding import Severity, Verdict
from graphcheck.fuzzer import fuzz
from graphcheck.oracle.lockstep import Options, run_plan
from graphcheck.plan import Plan
from graphcheck.zoo import Entry, entries

EXAMPLES = 30
# A twin of a whole driver or loop takes a second a plan; `graphcheck selftest` tries as many as it is told.
TWIN_EXAMPLES = {"msa": 15, "eagle3": 15}
WEAKER = {"GC961", "GC962", "GC963"}
ENTRIES = [entry for entry in entries() if "emulator" in entry.backends]
# Entries may share a twin; it is run once.
TWINS = list({entry.clean: entry for entry in reversed(ENTRIES)}.values())[::-1]


def test_an_entry_that_one_backend_cannot_show_says_why() -> None:
    for entry in entries():
        assert set(entry.backends) <= {"cuda", "emulator"} and entry.backends, entry.name
        assert bool(entry.reason) is (len(entry.backends) == 1), entry.name


def test_the_catalogue_says_that_the_emulator_finds_what_is_planted_on_it() -> None:
    assert [entry.code for entry in ENTRIES if "e" not in HAZARDS[entry.code].detectors] == []


def named(entry: Entry) -> str:
    return f"{entry.code}-{entry.name}"


@pytest.mark.parametrize("entry", ENTRIES, ids=named)
def test_planted_defect_is_found_with_its_cause_first_and_cannot_be_made_smaller(entry: Entry, tmp_path: Path) -> None:
    """Expected: the entry's code leads; no replay dropped and no length halved still fails; the repro file fails."""
    report = fuzz(entry.planted(), backend="emulator", examples=EXAMPLES, seed=1, out=tmp_path)
    (target,) = report.targets
    assert target.findings[0].code == entry.code, [f"{f.code}: {f.message}" for f in target.findings]
    assert target.findings[0].severity is entry.severity
    if entry.severity is not Severity.ERROR:
        return
    assert target.verdict is Verdict.FAIL
    assert target.repro is not None and target.repro.exists()
    assert target.plan is not None
    plan = Plan.from_json(target.plan)
    # What was shrunk is the leading finding; before attribution a mismatch is called GC964.
    lead = target.findings[0].code
    codes = {lead} if lead == "GC960" else {finding.code for finding in target.errors} | {"GC964"}
    if lead not in WEAKER:
        # A smaller plan may go on showing what is weaker evidence than what was shrunk.
        codes -= WEAKER
    for smaller in with_less(plan):
        outcome = run_plan(entry.planted(), smaller, resolve("emulator"), Options(immediate=True))
        assert not codes & {code for _, code in outcome.signature}, f"{smaller} still fails"


@pytest.mark.parametrize("entry", TWINS, ids=named)
def test_clean_twin_is_silent(entry: Entry) -> None:
    """Expected: verdict pass, no error and no warning."""
    examples = TWIN_EXAMPLES.get(entry.name.split("-", 1)[0], EXAMPLES)
    report = fuzz(entry.clean(), backend="emulator", examples=examples, seed=1)
    (target,) = report.targets
    loud = [finding for finding in target.findings if finding.severity is not Severity.NOTE]
    assert loud == []
    assert target.verdict is Verdict.PASS, target.rungs


def with_less(plan: Plan) -> Iterator[Plan]:
    """The plan with one option off, with one replay dropped, and with one length halved."""
    if plan.neighbour:
        yield replace(plan, neighbour=False)
    if plan.evict is not None:
        yield replace(plan, evict=None)
    if len(plan.replays) > 1:
        for index in range(len(plan.replays)):
            yield replace(plan, replays=plan.replays[:index] + plan.replays[index + 1 :])
    for group in ("captures", "replays"):
        cases = getattr(plan, group)
        for index, case in enumerate(cases):
            for name, value in case.fields.items():
                values = getattr(value, "values", None)
                if not isinstance(values, tuple):
                    continue
                for row, length in enumerate(values):
                    half = max(value.low, length // 2)
                    if half < length:
                        fewer = type(value)((*values[:row], half, *values[row + 1 :]), value.low, value.high)
                        changed = (*cases[:index], case.replaced(**{name: fewer}), *cases[index + 1 :])
                        yield replace(plan, **{group: changed})
