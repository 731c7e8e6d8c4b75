"""Attribution: the cause behind a mismatch, found by intervening on the shrunk failing plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from graphcheck.backend.protocol import Backend, Operation
from graphcheck.cases import Case
from graphcheck.component import Component
from graphcheck.errors import CaptureRefused
from graphcheck.finding import Finding, ranked
from graphcheck.oracle import graph_key, host_causes, limits, padding, pools, readiness, stale
from graphcheck.oracle.arm import Arm
from graphcheck.oracle.lockstep import Options, run_plan
from graphcheck.oracle.symptom import DIRECT, Kind, Outcome, Symptom
from graphcheck.plan import Plan
from graphcheck.watch import capture_status, context
from graphcheck.watch.differential import baked

_NEEDED = frozenset({"eager", "side_effects", "vacuity"})


def attribute(component: Component, plan: Plan, backend: Backend, outcome: Outcome) -> list[Finding]:
    """Findings for a failing plan, cause first.

    Evidence that names its cause by itself (a refusal, the ledger, an allocation, a broken promise to restore) needs
    no intervention. A replay that is not deterministic cannot be compared, so it comes before all else.
    """
    found = [symptom.finding for symptom in outcome.symptoms]
    direct = [symptom for symptom in outcome.errors if symptom.kind in DIRECT]
    if direct or outcome.of(Kind.DETERMINISM):
        return ranked([*(graph_key.of_another(component, plan, backend, each) for each in direct), *found])
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
        self._answers: dict[str, bool] = {}
        self._contexts: dict[str, context.Context] = {}

    def cause(self) -> Finding:
        """The finding with the cause's code, the symptom's place and values, and the interventions as evidence."""
        steps: tuple[Callable[[], Finding | None], ...] = (
            partial(pools.neighbour, self),
            partial(pools.eviction, self),
            self._reads_unwritten,
            partial(limits.random_stream, self),
            partial(host_causes.capture_aware, self),
            partial(host_causes.python_state, self),
            partial(readiness.not_settled, self),
            self._without_warmups,
            self._captured_at_failing_case,
            partial(host_causes.schedule, self),
            self._refilled,
            partial(pools.shared, self),
            partial(pools.kept_output, self),
            self._sentinel,
            partial(padding.leaks, self),
            partial(limits.beyond_capacity, self),
            partial(limits.other_algorithm, self),
            self._region_eagerly,
        )
        for step in steps:
            finding = step()
            if finding is not None:
                return finding.with_evidence(*self.tried)
        return self.symptom.finding.with_evidence(*self.tried)

    def gone(self, what: str, options: Options, plan: Plan | None = None) -> bool:
        """Whether the symptom does not show under an intervention (or with another plan); remembered as evidence."""
        if what in self._answers:
            return self._answers[what]
        again = run_plan(
            self.component, plan or self.plan, self.backend, replace(options, immediate=True, rungs=_NEEDED)
        )
        kinds = {Kind.EAGER, Kind.CRASH, self.symptom.kind}
        gone = again.counts.replays > 0 and not again.of(*kinds) and not again.of(Kind.REFUSAL)
        self.tried.append(f"{what}: the mismatch is {'gone' if gone else 'still there'}")
        self._answers[what] = gone
        return gone

    def named(self, code: str, message: str, advice: str, *evidence: str) -> Finding:
        return replace(self.symptom.finding, code=code, message=message, advice=advice).with_evidence(*evidence)

    def _reads_unwritten(self) -> Finding | None:
        """Poison that reaches the outputs of a fresh arm, run eagerly, was read from memory that nobody wrote."""
        unwritten = stale.poison_in_fresh_answer(self.component, self.case, self.backend)
        if unwritten is not None:
            self.tried.append("a fresh eager arm: its answer depends on memory that this case did not write")
            left_over = stale.explain(self.component, self.plan, self.symptom, self.backend)
            if left_over is not None:
                return left_over
        elif type(self.component).eager is not Component.eager:
            unwritten = stale.poison_in_fresh_answer(self.component, self.case, self.backend, region=True)
            if unwritten is not None:
                self.tried.append("a fresh arm: what is captured depends on memory that nothing has written")
        if unwritten is None:
            return None
        held = ", ".join(f"{count} elements of {name}" for name, count in unwritten.inputs.items())
        return self.named(
            "GC704",
            f"{self.symptom.name or unwritten.output} depends on {held or 'padding or memory'} that nothing has written",
            "give padding rows a neutral length and contents, mask them at load, and write every output",
        )

    def _without_warmups(self) -> Finding | None:
        if self.plan.warmups == 0 or self.symptom.kind is Kind.HISTORY:
            return None
        if not self.gone("captured without warm-ups", Options(warmups=0)):
            return None
        if self.outcome.drifted:
            names = ", ".join(self.outcome.drifted[:4])
            return self.named(
                "GC604",
                f"warm-up runs advance {names}, and nobody puts it back before the first replay",
                "declare it in mutates (the harness restores it), or save and restore it in around_warmup",
                f"changed by warm-up: {names}",
            )
        left = host_causes.left_by_warmup(self)
        if left:
            return self.named(
                "GC310",
                f"around_warmup leaves {', '.join(left[:4])} behind, and the capture goes by it",
                "put back what warm-up or capture forces, on cached copies too, before the capture",
            )
        missing = self._missing_operations()
        evidence = [f"in the first call only: {', '.join(missing[:6])}"] if missing else []
        if readiness.only_copies(missing):
            return self.named(
                "GC406",
                "a cast or a copy of another tensor was cached before the capture: the graph reads the cache, and what "
                "it was derived from changes",
                "derive it inside the region, or refresh the cache in place whenever the source changes",
                *evidence,
            )
        return self.named(
            "GC602",
            "work that every step needs was done in warm-up only, so the graph lacks it",
            "reset the lazy state before capture so that the work is recorded, or redo it in stage",
            *evidence,
        )

    def _captured_at_failing_case(self) -> Finding | None:
        if self.symptom.kind is Kind.HISTORY:
            return None
        if not self.gone("captured at the failing case", Options(capture_at=self.case)):
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
        if self.symptom.kind is Kind.HISTORY or self.gone("static inputs staged afresh", Options(refill=True)):
            return stale.explain(self.component, self.plan, self.symptom, self.backend)
        return None

    def _sentinel(self) -> Finding | None:
        if self.symptom.kind not in (Kind.SIDE_EFFECT, Kind.EAGER):
            return None
        moved = stale.damage_follows_sentinel(self.component, self.plan, self.symptom, self.backend)
        if moved is None:
            return None
        damaged, words = moved
        self.tried.append(words)
        return self.named(
            "GC703",
            f"a padding sentinel is a valid index: padding rows write into live entries of {damaged}",
            "reserve a dummy slot for padding rows, or mask their writes",
        )

    def _region_eagerly(self) -> Finding | None:
        if self.symptom.kind in (Kind.HISTORY, Kind.OBSERVE, Kind.POISON, Kind.SIDE_EFFECT):
            return None
        if self.region_cures():
            return None
        return self.named(
            "GC312",
            "the staged data does not have the layout that the region reads: run eagerly on the same buffers, the region "
            "gives the same wrong bits",
            "let one function write the layout for capture and replay, and re-stage everything derived from the lengths",
        )

    def region_cures(self) -> bool:
        """Whether arm A's region gives the right bits when it is run and not replayed."""
        return self.gone("the region run eagerly on the captured arm's buffers", Options(region_eagerly=True))

    def _differential(self) -> list[Finding]:
        """Differences between a record at the plan's capture case and one at the failing case."""
        key = self.component.key(self.case)
        first = next((case for case in self.plan.captures if self.component.key(case) == key), None)
        if first is None:
            return []
        records = [self.record(case) for case in (first, self.case)]
        if any(record is None for record in records):
            return []
        found = baked(records[0] or [], records[1] or [], (str(first), str(self.case)))
        return [graph_key.refined(self, first, found[0]), *found[1:]] if found else []

    def record(
        self,
        case: Case,
        warmups: int | None = None,
        unaware: bool = False,
        after: tuple[Case, ...] = (),
        context_of: Case | None = None,
    ) -> list[Operation] | None:
        """The operations that a fresh arm records at a case; None where the case or the capture is refused.

        Args:
            warmups: instead of the plan's number.
            unaware: the region is told that nothing is capturing.
            after: eager steps before the record.
            context_of: record in the context that staging this case left, instead of the case's own.
        """
        with self.backend.active(), context.preserved():
            arm = Arm(self.component, self.backend)
            for earlier in after:
                if arm.stage(earlier) is None:
                    arm.observe(arm.eager(earlier))
            if arm.stage(case) is not None:
                return None
            for _ in range(self.plan.warmups if warmups is None else warmups):
                with arm.component.around_warmup(arm.buffers):
                    arm.run()
                if arm.stage(case) is not None:
                    return None
            self._contexts[str(case)] = context.snapshot()
            if context_of is not None:
                context.apply(self._contexts[str(context_of)])
            try:
                with capture_status.denied() if unaware else nullcontext():
                    recording = arm.record_as(arm.run, self.backend.pool())
            except CaptureRefused:
                return None
            operations = list(recording.operations())
            recording.close()
            return operations

    def _missing_operations(self) -> list[str]:
        """Operations that a cold record has and a warm one lacks."""
        case = self.plan.captures[0]
        cold, warm = self.record(case, warmups=0), self.record(case)
        return self.only_in(cold, warm) if cold is not None and warm is not None else []

    def only_in(self, first: Sequence[Operation], second: Sequence[Operation]) -> list[str]:
        """Operations of the first record that the second lacks, each with its line."""
        left = [operation.name for operation in second]
        found = []
        for operation in first:
            if operation.name in left:
                left.remove(operation.name)
            else:
                found.append(f"{operation.name} ({operation.where})" if operation.where else operation.name)
        return found


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
            recording = captured.record_as(captured.run, backend.pool())
        except CaptureRefused:
            return None
        try:
            if captured.stage(case) is not None or eager.stage(case) is not None:
                return None
            return backend.first_difference(recording, eager.run)
        finally:
            recording.close()
