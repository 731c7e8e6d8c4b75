"""`fuzz`: search for a failing plan, shrink it, name its cause."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hypothesis.strategies import SearchStrategy

from graphcheck import repro
from graphcheck.cases import Case
from graphcheck.checker import conclude, instance, merge_notes, merge_rungs, write_repro
from graphcheck.component import Component
from graphcheck.errors import ContractError
from graphcheck.finding import RungStatus, Severity, ranked
from graphcheck.generation import generate
from graphcheck.oracle.lockstep import Options
from graphcheck.oracle.symptom import DIRECT, Kind, Outcome
from graphcheck.oracle.vacuity import never_replayed, refused_or_empty
from graphcheck.plan import Plan
from graphcheck.report import Report, TargetReport
from graphcheck.runner import LocalRunner, Runner
from graphcheck.shrinker import Shrinker, bisected
from graphcheck.strategies import plans as plans_of

_UNBOUNDED = 10**7
_KEPT_CASES = 60


@dataclass(frozen=True)
class Progress:
    """Where a search stands: for the live line.

    Args:
        phase: ``"search"``, ``"shrink"`` or ``"vacuity"``.
        plans, replays: run so far.
        findings: errors found so far.
        seconds: since the start.
    """

    phase: str
    plans: int
    replays: int
    findings: int
    seconds: float


class _Found(Exception):
    """Tells Hypothesis that a plan fails."""


class _TimeUp(BaseException):
    """Ends the search; not an Exception, so that Hypothesis does not take it for a failing plan."""


def fuzz(
    component: Component | type[Component],
    *,
    backend: str = "auto",
    examples: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    database: Path | None = None,
    out: Path | None = None,
    cases: SearchStrategy[Case] | None = None,
    plans: SearchStrategy[Plan] | None = None,
    target: str = "",
    progress: Callable[[Progress], None] | None = None,
    runner: Runner | None = None,
) -> Report:
    """Search for a failing plan and report it, shrunk and with its cause.

    Args:
        component: an unallocated component, or its class.
        backend: ``auto``, ``cuda`` or ``emulator``.
        examples: plans to try; 100 if neither this nor ``seconds`` is given.
        seconds: stop the search after that long.
        seed: the same seed, sources and versions give the same plans.
        database: folder where failing plans are kept as repro files and tried first; a plan that passes again is
            dropped. None keeps none.
        out: folder for a repro file; None writes none.
        cases: instead of the component's own strategy.
        plans: instead of plans drawn from cases.
        target: how to call the component in the report.
        progress: called after every plan.
        runner: where plans run, instead of in this process on ``backend``; the caller closes it.

    Returns:
        A report with one target. Ctrl-C ends the search and keeps what was found.

    Raises:
        UsageError: the component cannot be run.
        EnvironmentUnable: this machine cannot run the backend.
    """
    component = instance(component)
    search = _Search(component, runner if runner is not None else LocalRunner(component, backend), target, progress)
    budget = _UNBOUNDED if examples is None and seconds is not None else (100 if examples is None else examples)
    search.run(search.plans(cases, plans), budget, seconds, seed, database)
    search.conclude(out, database)
    words = f"fuzz {search.entry.target} --examples {budget} --seed {seed}"
    return Report(words, search.runner.environment(), [search.entry])


class _Search:
    """One search over one component."""

    def __init__(
        self,
        component: Component,
        runner: Runner,
        target: str,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.component = component
        self.runner = runner
        self.entry = TargetReport(target or component.title, runner.backend_name)
        self.started = time.perf_counter()
        self.deadline: float | None = None
        self.failing: tuple[Plan, Outcome] | None = None
        self.broken: Exception | None = None
        self.cases: list[Case] = []
        self.refusals: list[str] = []
        self._progress = progress
        self._outcomes: dict[str, Outcome] = {}

    def plans(self, cases: SearchStrategy[Case] | None, plans: SearchStrategy[Plan] | None) -> SearchStrategy[Plan]:
        """The strategy to search."""
        if plans is not None:
            return plans
        drawn = self.component.cases() if cases is None else cases
        if not isinstance(drawn, SearchStrategy):
            raise ContractError(
                f"{self.component.title}.cases returned {type(drawn).__name__}; return graphcheck.case(...)"
            )
        pool_options = self.runner.pool_options
        return plans_of(drawn, self.component.key, self.component.warmup, pool_options=pool_options)

    def run(
        self,
        plans: SearchStrategy[Plan],
        examples: int,
        seconds: float | None,
        seed: int,
        database: Path | None,
    ) -> None:
        """Try plans until one fails, the budget is spent, time is up or the user interrupts."""
        self.deadline = None if seconds is None else self.started + seconds
        try:
            if database is not None:
                self._try_kept(database)
            generate(plans, self._attempt, examples=max(1, examples), seeded=seed)
        except _Found:
            pass
        except _TimeUp:
            self.entry.stopped = "time"
        except KeyboardInterrupt:
            self.entry.stopped = "interrupted"
        self.entry.seconds["search"] = time.perf_counter() - self.started
        if self.broken is not None:
            raise self.broken

    def _try_kept(self, database: Path) -> None:
        """Try the plans that failed before; those that pass now are dropped."""
        for path in repro.kept(database, self.entry.target):
            plan = repro.load(path).plan
            if plan.has_pool_options and not self.runner.pool_options:
                continue
            self._attempt(plan)
            path.unlink()

    def _attempt(self, plan: Plan) -> None:
        """Run one plan; raises _Found if it fails. Hypothesis runs a failing plan again, which is answered from memory."""
        if self.broken is not None or (self.failing is not None and self.failing[0].digest == plan.digest):
            raise _Found
        if self.deadline is not None and time.perf_counter() > self.deadline:
            raise _TimeUp
        try:
            outcome = self.runner.run(plan, Options())
        except Exception as error:
            # Kept for the caller as it is: Hypothesis would run the plan again and attach notes of its own.
            self.broken = error
            raise _Found from error
        outcome.counts.plans = 1
        self.entry.counts.add(outcome.counts)
        merge_rungs(self.entry, self.component, outcome)
        self.entry.findings = merge_notes(self.entry.findings, outcome.notes)
        self.refusals += outcome.refusals[:1]
        if len(self.cases) < _KEPT_CASES:
            self.cases += plan.replays
        if outcome.failed:
            self.failing = (plan, outcome)
        self._report("search")
        if outcome.failed:
            raise _Found

    def conclude(self, out: Path | None, database: Path | None) -> None:
        """Shrink and attribute the failing plan, or ask whether anything could have failed."""
        try:
            if self.failing is not None:
                self._explain(*self.failing, out)
                if database is not None and self.entry.plan is not None:
                    write_repro(self.entry, self.component, database)
            else:
                self._vacuity()
        except KeyboardInterrupt:
            self.entry.stopped = "interrupted"
            if self.failing is not None and not self.entry.errors:
                plan, outcome = self.failing
                self.entry.findings = ranked([symptom.finding for symptom in outcome.errors])
                self.entry.plan = plan.to_json()
        self.entry.conclude()

    def _explain(self, plan: Plan, outcome: Outcome, out: Path | None) -> None:
        started = time.perf_counter()
        notes = self.entry.findings
        small = self._shrunk(plan, outcome)
        again = self.runner.run(small, Options())
        if not again.failed:
            small, again = plan, self.runner.run(plan, Options())
        self.entry.seconds["shrink"] = time.perf_counter() - started
        if again.failed:
            conclude(self.entry, self.component, small, self.runner, again, out)
        else:
            self._seen_once(plan, outcome, out)
        if self.runner.exhausted and self.entry.findings:
            first = self.entry.findings[0].with_evidence("shrinking stopped: too many plans crashed")
            self.entry.findings = [first, *self.entry.findings[1:]]
        self.entry.findings = ranked(merge_notes(self.entry.findings, notes))
        self.entry.seconds["attribution"] = time.perf_counter() - started - self.entry.seconds["shrink"]

    def _seen_once(self, plan: Plan, outcome: Outcome, out: Path | None) -> None:
        """Report what a plan showed that passed when it was run again: what happens once in a process, or by chance."""
        seen = "seen once: the same plan passed when it was run again in this process"
        merge_rungs(self.entry, self.component, outcome)
        self.entry.findings = ranked([symptom.finding.with_evidence(seen) for symptom in outcome.errors])
        self.entry.plan = plan.to_json()
        if out is not None:
            self.entry.repro = write_repro(self.entry, self.component, out)

    def _shrunk(self, plan: Plan, outcome: Outcome) -> Plan:
        """The local minimum; shrunk again where the small plan shows stronger evidence than what it was shrunk by."""
        wanted: frozenset[tuple[str, str]] = frozenset()
        for _ in _STRENGTH:
            if _leading_signature(outcome) == wanted:
                break
            wanted = _leading_signature(outcome)
            fails = partial(self._fails_alike, wanted=wanted)
            # Each crash costs a process, so lengths are bisected before anything is tried one by one.
            plan = bisected(plan, fails) if outcome.of(Kind.CRASH) else plan
            shrinker = Shrinker(fails)
            plan = shrinker.shrink(plan)
            self.entry.counts.shrinks += shrinker.attempts
            outcome = self.runner.run(plan, Options(immediate=True))
            if not outcome.failed:
                break
        return plan

    def _fails_alike(self, plan: Plan, wanted: frozenset[tuple[str, str]]) -> bool:
        """Whether a plan shows one of the wanted errors, exercising only the rungs this takes."""
        self._report("shrink")
        kinds = {kind for kind, _ in wanted}
        needed = frozenset(rung for kind, rung in _NEEDED_RUNG.items() if kind.value in kinds) | {"eager"}
        again = self.runner.run(plan, Options(immediate=True, rungs=needed))
        return bool(wanted & again.signature)

    def _vacuity(self) -> None:
        started = time.perf_counter()
        self._report("vacuity")
        empty = refused_or_empty(self.entry.counts, self.refusals)
        if empty is not None:
            self.entry.findings = ranked([empty, *self.entry.findings])
            self.entry.rungs["vacuity"] = RungStatus.FAILED
            if self.entry.counts.replays == 0:
                self.entry.rungs = {
                    rung: status if status is RungStatus.ABSENT or rung == "vacuity" else RungStatus.NOT_RUN
                    for rung, status in self.entry.rungs.items()
                }
        elif self.entry.stopped != "interrupted":
            influence = self.runner.influence(self.cases)
            if influence is None:
                self.entry.rungs["vacuity"] = RungStatus.NOT_RUN
            found = [*never_replayed(self.entry.counts), *(influence or [])]
            self.entry.findings = ranked([*self.entry.findings, *found])
        self.entry.seconds["vacuity"] = time.perf_counter() - started

    def _report(self, phase: str) -> None:
        if self._progress is None:
            return
        counts = self.entry.counts
        errors = sum(finding.severity is Severity.ERROR for finding in self.entry.findings) + (self.failing is not None)
        self._progress(Progress(phase, counts.plans, counts.replays, errors, time.perf_counter() - self.started))


_STRENGTH: tuple[frozenset[Kind], ...] = (
    DIRECT,
    frozenset({Kind.DETERMINISM}),
    frozenset({Kind.CRASH, Kind.EAGER, Kind.OBSERVE}),
    frozenset({Kind.HISTORY}),
    frozenset({Kind.REFERENCE}),
    frozenset({Kind.SIDE_EFFECT}),
)

_NEEDED_RUNG = {
    Kind.DETERMINISM: "determinism",
    Kind.REFERENCE: "reference",
    Kind.SIDE_EFFECT: "side_effects",
    Kind.POISON: "vacuity",
}


def _leading_signature(outcome: Outcome) -> frozenset[tuple[str, str]]:
    """What shrinking preserves: the strongest evidence there is, so that a weaker symptom cannot take its place."""
    for group in _STRENGTH:
        found = frozenset(
            (symptom.kind.value, symptom.finding.code) for symptom in outcome.errors if symptom.kind in group
        )
        if found:
            return found
    return outcome.signature
