"""`check`: one plan of one component, from its run to a report with the cause."""

from __future__ import annotations

import time
from pathlib import Path

from graphcheck import repro
from graphcheck.component import Component
from graphcheck.errors import ContractError
from graphcheck.finding import Finding, RungStatus, Severity, ranked
from graphcheck.oracle.lockstep import Options
from graphcheck.oracle.symptom import Outcome
from graphcheck.oracle.vacuity import refused_or_empty
from graphcheck.plan import Plan
from graphcheck.report import Report, TargetReport
from graphcheck.runner import LocalRunner, Runner


def check(
    component: Component,
    plan: Plan,
    *,
    backend: str = "auto",
    target: str = "",
    out: Path | None = None,
    runner: Runner | None = None,
) -> Report:
    """Run one plan in lockstep and report what it shows.

    Args:
        component: never allocated; it is copied.
        plan: captures, warm-ups and replays.
        backend: ``auto``, ``cuda`` or ``emulator``.
        target: how to call the component in the report.
        out: folder for a repro file if the plan fails; None writes none.
        runner: where the plan runs, instead of in this process on ``backend``; the caller closes it.

    Returns:
        A report with one target.

    Raises:
        UsageError: the component or the plan cannot be run.
        EnvironmentUnable: this machine cannot run the backend.
    """
    component = instance(component)
    runner = runner if runner is not None else LocalRunner(component, backend)
    entry = TargetReport(target or component.title, runner.backend_name)
    started = time.perf_counter()
    plan = plan.through_json()
    outcome = runner.run(plan, Options())
    conclude(entry, component, plan, runner, outcome, out)
    entry.counts.add(outcome.counts)
    entry.counts.plans = 1
    if not entry.errors and (empty := refused_or_empty(entry.counts, outcome.refusals)) is not None:
        entry.findings = ranked([empty, *entry.findings])
        entry.rungs["vacuity"] = RungStatus.FAILED
    entry.seconds["check"] = time.perf_counter() - started
    entry.conclude()
    return Report(f"check {entry.target}", runner.environment(), [entry])


def conclude(
    entry: TargetReport,
    component: Component,
    plan: Plan,
    runner: Runner,
    outcome: Outcome,
    out: Path | None,
) -> None:
    """Fill rungs and findings of ``entry`` from the outcome of a plan; attribute and write a repro file if it failed."""
    merge_rungs(entry, component, outcome)
    if not outcome.failed:
        entry.findings = ranked(merge_notes([], outcome.notes))
        return
    outcome = runner.run(plan, Options(immediate=True))
    merge_rungs(entry, component, outcome)
    findings = runner.explain(plan, outcome)
    entry.findings = ranked(merge_notes(findings, outcome.notes))
    entry.plan = plan.to_json()
    if out is not None:
        entry.repro = write_repro(entry, component, out)


def write_repro(entry: TargetReport, component: Component, folder: Path) -> Path:
    """Write the entry's failing plan and findings into ``folder``."""
    plan, tokens = Plan.from_json(entry.plan), getattr(component, "graphcheck_tokens", None)
    found = [finding for finding in entry.findings if finding.severity is not Severity.NOTE]
    return repro.write(folder, entry.target, entry.backend, plan, found, tokens)


def merge_rungs(entry: TargetReport, component: Component, outcome: Outcome) -> None:
    """Bring an outcome's rungs into the entry: failed beats passed, passed beats not run."""
    absent = frozenset() if type(component).reference is not Component.reference else frozenset({"reference"})
    weight = {RungStatus.NOT_RUN: 0, RungStatus.ABSENT: 0, RungStatus.PASSED: 1, RungStatus.FAILED: 2}
    for rung, status in outcome.statuses(absent).items():
        if weight[status] > weight[entry.rungs[rung]] or status is RungStatus.ABSENT:
            entry.rungs[rung] = status


def merge_notes(findings: list[Finding], notes: list[Finding]) -> list[Finding]:
    """Notes and warnings without repetition, behind the findings."""
    known = {(finding.code, finding.severity, str(finding.where)) for finding in findings}
    merged = list(findings)
    for note in notes:
        mark = (note.code, note.severity, str(note.where))
        if mark not in known and note.severity is not Severity.ERROR:
            known.add(mark)
            merged.append(note)
    return merged


def instance(component: Component | type[Component]) -> Component:
    """The component itself, or one made from its class.

    Raises:
        ContractError: it is neither.
    """
    made = component() if isinstance(component, type) and issubclass(component, Component) else component
    if not isinstance(made, Component):
        raise ContractError(f"expected a graphcheck.Component or its class, got {type(made).__name__}")
    return made
