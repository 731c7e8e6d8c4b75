"""Attribution: the cause behind a mismatch, found by intervening on the shrunk failing plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from graphcheck.backend.protocol import Backend, Operation
from graphcheck.cases import Case
from graphcheck.component import Component
from graphcheck.errors import CaptureRefused
from graphcheck.finding import Finding, ranked
from graphcheck.oracle import stale
from graphcheck.oracle.arm import Arm
from graphcheck.oracle.lockstep import Options, run_plan
from graphcheck.oracle.symptom import DIRECT, Kind, Outcome, Symptom
from graphcheck.plan import Plan
from graphcheck.watch.differential import baked

_NEEDED = frozenset({"eager", "side_effects", "vacuity"})


def attribute(component: Component, plan: Plan, backend: Backend, outcome: Outcome) -> list[Finding]:
    """Findings for a failing plan, cause first.

    Evidence that names its cause by itself (a refusal, the ledger, an allocation, a broken promise to restore) needs
    no intervention. A replay that is not deterministic cannot be compared, so it comes before all else.
    """
    found = [symptom.finding for symptom in outcome.symptoms]
    direct = [symptom.finding for symptom in outcome.errors if symptom.kind in DIRECT]
    if direct or outcome.of(Kind.DETERMINISM):
        return ranked([*direct, *found])
    symptom = _leading(outcome)
    if symptom is None:
        return ranked(found)
    cause = Attribution(component, plan, backend, outcome, symptom).cause()
    rest = [finding for finding in found if finding.code != "GC964" and finding is not symptom.finding]
    return ranked([cause, *rest])


def _leading(outcome: Outcome) -> Symptom | None:
    """The symptom whose cause is asked for: the arms' difference first, then what else is wrong."""
    order = (Kind.CRASH, Kind.EAGER, Kind.OBSERVE, Kind.HISTORY, Kind.SIDE_EFFECT, Kind.POISON)
    return next((symptom for kind in order for symptom in outcome.of(kind)), None)


class Attribution:
    """The interventions on one failing plan, in the order in which they exclude each other."""

    def __init__(self, component: Component, plan: Plan, backend: Backend, outcome: Outcome, symptom: Symptom) -> None:
        self.component = component
        self.plan = plan
        self.backend = backend
        self.outcome = outcome
        self.symptom = symptom
        self.case = plan.replays[symptom.step or 0]
        self.tried: list[str] = []

    def cause(self) -> Finding:
        """The finding with the cause's code, the symptom's place and values, and the interventions as evidence."""
        steps: tuple[Callable[[], Finding | None], ...] = (
            self._reads_unwritten,
            self._without_warmups,
            self._captured_at_failing_case,
            self._refilled,
            self._in_own_pools,
            self._kept_output,
            self._sentinel,
            self._region_eagerly,
        )
        for step in steps:
            finding = step()
            if finding is not None:
                return finding.with_evidence(*self.tried)
        return self.symptom.finding.with_evidence(*self.tried)

    def _gone(self, what: str, options: Options) -> bool:
        """Whether the symptom does not show under an intervention; remembered as evidence."""
        again = run_plan(self.component, self.plan, self.backend, replace(options, immediate=True, rungs=_NEEDED))
        kinds = {Kind.EAGER, Kind.CRASH, self.symptom.kind}
        gone = again.counts.replays > 0 and not again.of(*kinds) and not again.of(Kind.REFUSAL)
        self.tried.append(f"{what}: the mismatch is {'gone' if gone else 'still there'}")
        return gone

    def _named(self, code: str, message: str, advice: str, *evidence: str) -> Finding:
        return replace(self.symptom.finding, code=code, message=message, advice=advice).with_evidence(*evidence)

    def _reads_unwritten(self) -> Finding | None:
        """Poison that reaches the outputs of a fresh eager arm was read from memory that nobody wrote."""
        name = stale.poison_in_fresh_answer(self.component, self.case, self.backend)
        if name is None:
            return None
        self.tried.append("a fresh eager arm: its answer depends on memory that this case did not write")
        left_over = stale.explain(self.component, self.plan, self.symptom, self.backend)
        if left_over is not None:
            return left_over
        return self._named(
            "GC704",
            f"{self.symptom.name or name} depends on padding or memory that nothing has written",
            "give padding rows a neutral length and contents, mask them at load, and write every output",
        )

    def _without_warmups(self) -> Finding | None:
        if self.plan.warmups == 0 or self.symptom.kind is Kind.HISTORY:
            return None
        if not self._gone("captured without warm-ups", Options(warmups=0)):
            return None
        if self.outcome.drifted:
            names = ", ".join(self.outcome.drifted[:4])
            return self._named(
                "GC604",
                f"warm-up runs advance {names}, and nobody puts it back before the first replay",
                "declare it in mutates (the harness restores it), or save and restore it in around_warmup",
                f"changed by warm-up: {names}",
            )
        return self._named(
            "GC602",
            "work that every step needs was done in warm-up only, so the graph lacks it",
            "reset the lazy state before capture so that the work is recorded, or redo it in stage",
            *self._missing_operations(),
        )

    def _captured_at_failing_case(self) -> Finding | None:
        if self.symptom.kind is Kind.HISTORY:
            return None
        if not self._gone("captured at the failing case", Options(capture_at=self.case)):
            return None
        found = self._differential()
        if found:
            advice = found[0]
            return replace(
                self.symptom.finding,
                code=advice.code,
                message=advice.message,
                where=advice.where,
                advice=advice.advice,
            ).with_evidence(advice.place, f"frozen: {advice.got}", f"needed: {advice.expected}")
        return stale.explain(self.component, self.plan, self.symptom, self.backend)

    def _refilled(self) -> Finding | None:
        if self.symptom.kind is Kind.HISTORY or self._gone("static inputs staged afresh", Options(refill=True)):
            return stale.explain(self.component, self.plan, self.symptom, self.backend)
        return None

    def _in_own_pools(self) -> Finding | None:
        if len({self.component.key(case) for case in (*self.plan.captures, *self.plan.replays)}) < 2:
            return None
        if not self._gone("each graph in a pool of its own", Options(own_pools=True)):
            return None
        return self._named(
            "GC502",
            f"{self.symptom.name} lies in pool memory that another graph of the pool overwrites while it is still needed",
            "copy outputs out before another graph of the pool runs, or give the graphs separate pools",
        )

    def _kept_output(self) -> Finding | None:
        if self.symptom.kind is not Kind.OBSERVE:
            return None
        return self._named(
            "GC501",
            f"{self.symptom.name} is an output kept across replays, and each replay overwrites it",
            "clone an output before keeping it",
        )

    def _sentinel(self) -> Finding | None:
        if self.symptom.kind is not Kind.SIDE_EFFECT and not self._mutated():
            return None
        moved = stale.damage_follows_sentinel(self.component, self.plan, self.symptom, self.backend)
        if moved is None:
            return None
        self.tried.append(moved)
        return self._named(
            "GC703",
            f"a padding sentinel is a valid index: padding rows write into live entries of {self.symptom.name}",
            "reserve a dummy slot for padding rows, or mask their writes",
        )

    def _region_eagerly(self) -> Finding | None:
        if self.symptom.kind in (Kind.HISTORY, Kind.OBSERVE, Kind.POISON, Kind.SIDE_EFFECT):
            return None
        if self._gone("the region run eagerly on the captured arm's buffers", Options(region_eagerly=True)):
            return None
        return self._named(
            "GC312",
            "the staged data does not have the layout that the region reads: run eagerly on the same buffers, the region "
            "gives the same wrong bits",
            "let one function write the layout for capture and replay, and re-stage everything derived from the lengths",
        )

    def _mutated(self) -> bool:
        return self.symptom.name in self.component.mutates

    def _differential(self) -> list[Finding]:
        """Differences between a record at the plan's capture case and one at the failing case."""
        key = self.component.key(self.case)
        first = next((case for case in self.plan.captures if self.component.key(case) == key), None)
        if first is None:
            return []
        records = [self._record(case) for case in (first, self.case)]
        if any(record is None for record in records):
            return []
        return baked(records[0] or [], records[1] or [], (str(first), str(self.case)))

    def _record(self, case: Case, warmups: int | None = None) -> list[Operation] | None:
        with self.backend.active():
            arm = Arm(self.component, self.backend)
            if arm.stage(case) is not None:
                return None
            for _ in range(self.plan.warmups if warmups is None else warmups):
                with arm.component.around_warmup(arm.buffers):
                    arm.run()
                if arm.stage(case) is not None:
                    return None
            try:
                recording = self.backend.record(arm.run, self.backend.pool())
            except CaptureRefused:
                return None
            operations = list(recording.operations())
            recording.close()
            return operations

    def _missing_operations(self) -> list[str]:
        """Operations that a cold record has and a warm one lacks."""
        case = self.plan.captures[0]
        cold, warm = self._record(case, warmups=0), self._record(case)
        if cold is None or warm is None:
            return []
        left = [operation.name for operation in warm]
        missing = []
        for operation in cold:
            if operation.name in left:
                left.remove(operation.name)
            else:
                missing.append(f"{operation.name} ({operation.where})" if operation.where else operation.name)
        return [f"in the first call only: {', '.join(missing[:6])}"] if missing else []


def first_difference(component: Component, plan: Plan, backend: Backend, outcome: Outcome) -> str | None:
    """The first recorded operation whose result differs between replay and eager, where the backend can tell."""
    symptom = _leading(outcome)
    if symptom is None or symptom.kind is not Kind.EAGER or symptom.step is None:
        return None
    case = plan.replays[symptom.step]
    key = component.key(case)
    at = next((capture for capture in plan.captures if component.key(capture) == key), case)
    with backend.active():
        captured, eager = Arm(component, backend), Arm(component, backend)
        if captured.stage(at) is not None:
            return None
        for _ in range(plan.warmups):
            with captured.component.around_warmup(captured.buffers):
                captured.run()
        try:
            recording = backend.record(captured.run, backend.pool())
        except CaptureRefused:
            return None
        if captured.stage(case) is not None or eager.stage(case) is not None:
            return None
        try:
            return backend.first_difference(recording, eager.run)
        finally:
            recording.close()
