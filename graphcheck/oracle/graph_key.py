"""What a record depends on: the case field, or the ambient context, behind a difference between two records."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING

from graphcheck.backend.protocol import Backend
from graphcheck.cases import Case, Contents, Integer, Lengths, PageTable
from graphcheck.component import Component
from graphcheck.finding import Finding
from graphcheck.oracle.lockstep import Options, run_plan
from graphcheck.oracle.symptom import Kind, Symptom
from graphcheck.plan import Plan
from graphcheck.watch.differential import baked

if TYPE_CHECKING:
    from graphcheck.oracle.attribution import Attribution


def of_another(component: Component, plan: Plan, backend: Backend, symptom: Symptom) -> Finding:
    """The symptom's finding; GC311 instead of GC401 if the address moved only because the graph of another key was
    captured as well."""
    found = symptom.finding
    if found.code != "GC401" or symptom.step is None:
        return found
    if len({component.key(case) for case in (*plan.captures, *plan.replays)}) < 2:
        return found
    alone = only(component, plan, component.key(plan.replays[symptom.step]))
    again = run_plan(component, alone, backend, Options(immediate=True, rungs=frozenset({"eager"})))
    if not again.counts.replays or again.of(Kind.LEDGER):
        return found
    return replace(
        found,
        code="GC311",
        message=f"capturing the graph of another key replaces {found.place}, which this graph goes on reading",
        advice="store what a graph reads under the whole graph key",
    ).with_evidence("without the graphs of other keys: the address stays")


def only(component: Component, plan: Plan, key: Hashable) -> Plan:
    """The plan without what belongs to other graph keys."""
    replays = tuple(case for case in plan.replays if component.key(case) == key)
    captures = tuple(case for case in plan.captures if component.key(case) == key)
    return replace(plan, captures=captures or replays[-1:], replays=replays, evict=None)


def refined(study: Attribution, first: Case, found: Finding) -> Finding:
    """The finding of a differential record, named by what drives the difference.

    GC310 if it is gone under the context of the capture, GC311 if a graph key is declared and leaves out the
    configuration that drives it, GC304 if lengths choose other operations; else as it was.
    """
    leak = _context(study, first)
    if leak:
        return replace(
            found,
            code="GC310",
            message=f"the graph was captured under another context than this replay is served in: {leak[0]}",
            advice="enter the context inside run(), set it once before the capture, or put it in the graph key",
        ).with_evidence(*leak)
    fields = _driving(study, first)
    if not fields:
        return found
    words = ", ".join(fields)
    kinds = {type(study.case.fields[name]) for name in fields}
    if type(study.component).key is not Component.key and not kinds & {Lengths, Integer, Contents, PageTable}:
        return replace(
            found,
            code="GC311",
            message=f"the graph key leaves out {words}: {found.message}",
            advice=f"put {words} in key(), or read it from a device tensor",
        ).with_evidence(f"the record follows case field {words}, and key() does not")
    if found.code == "GC303" and kinds == {Lengths}:
        return replace(
            found,
            code="GC304",
            message=f"the host chooses the operations by {words}, and the choice of the capture is frozen",
            advice="choose by the capacity or the batch size, or let one variant serve every length",
        ).with_evidence(f"the record follows case field {words}")
    return found


def _driving(study: Attribution, first: Case) -> list[str]:
    """The fields that, given the failing case's value, change the record at the capture's case."""
    base = study.record(first)
    found = []
    for name, value in study.case.fields.items():
        if name not in first.fields or first.fields[name] == value:
            continue
        swapped = first.replaced(**{name: value})
        other = study.record(swapped)
        if base is not None and other is not None and baked(base, other, (str(first), str(swapped))):
            found.append(name)
    return found


def _context(study: Attribution, first: Case) -> list[str]:
    """The changes of context that alone make the record at the failing case differ; empty if they do not."""
    if not study.outcome.context:
        return []
    base, forced = study.record(first), study.record(study.case, context_of=first)
    if base is None or forced is None or baked(base, forced, (str(first), str(study.case))):
        return []
    return study.outcome.context
