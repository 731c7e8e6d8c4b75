"""Lockstep: a captured arm and an eager arm go through the same cases, and their bits are compared after each."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from graphcheck.backend.protocol import Backend
from graphcheck.cases import Case
from graphcheck.compare import Comparator
from graphcheck.component import Component
from graphcheck.errors import CaptureRefused, EnvironmentUnable
from graphcheck.finding import RUNGS, Finding, Severity
from graphcheck.oracle import pool_map
from graphcheck.oracle.arm import Arm, put_back
from graphcheck.oracle.capturing import Graph, capture, judge_growth, refusal_finding
from graphcheck.oracle.neighbours import Neighbours
from graphcheck.oracle.step import Step
from graphcheck.oracle.symptom import Kind, Outcome, Symptom
from graphcheck.plan import Plan
from graphcheck.report import KeyCounts
from graphcheck.watch import context, reachable

ALL_RUNGS = frozenset(RUNGS)


@dataclass(frozen=True)
class Options:
    """How a plan is run.

    Args:
        immediate: read every comparison at once and describe it; otherwise the host is asked once, at the end.
        rungs: the rungs to exercise.
        warmups: instead of the plan's own number.
        capture_at: capture every graph at this case instead of the plan's capture cases.
        refill: before each replay, give arm A's static inputs the contents that a fresh arm's staging gives them.
        own_pools: a pool of its own for each graph.
        region_eagerly: run arm A's region eagerly on its own buffers instead of replaying the graph.
        unaware: while it is captured, the region is told that nothing is capturing.
        host_state: the Python state that run() changes follows arm B's in arm A.
        padding: live rows and bucket: in arm A the rows of static inputs behind the live ones repeat the first.
        shared_rng: arm A starts each step from the generator state of arm B.
        pool_map: say which graphs of the pool write where another one keeps or reads something.
    """

    immediate: bool = False
    rungs: frozenset[str] = ALL_RUNGS
    warmups: int | None = None
    capture_at: Case | None = None
    refill: bool = False
    own_pools: bool = False
    region_eagerly: bool = False
    unaware: bool = False
    host_state: bool = False
    padding: tuple[int, int] | None = None
    shared_rng: bool = False
    pool_map: bool = False


def run_plan(component: Component, plan: Plan, backend: Backend, options: Options | None = None) -> Outcome:
    """Run ``plan`` in lockstep and collect every symptom.

    With ``immediate`` off, a run whose final host read shows a difference is repeated with it on, to describe the
    difference.

    Raises:
        EnvironmentUnable: the plan asks for what the backend does not carry out.
    """
    options = options if options is not None else Options()
    if plan.has_pool_options and not backend.pool_options:
        raise EnvironmentUnable(
            f"this plan has a neighbour in the pool or evicts graphs, which --backend {backend.name} does not carry out; "
            "use --backend emulator"
        )
    lockstep = Lockstep(component, plan, backend, options)
    outcome = lockstep.run()
    if lockstep.differs:
        again = Lockstep(component, plan, backend, replace(options, immediate=True)).run()
        if not again.failed:
            again.symptoms.append(Symptom(Kind.DETERMINISM, _unrepeatable(plan)))
        return again
    return outcome


def _unrepeatable(plan: Plan) -> Finding:
    return Finding(
        code="GC960",
        message="the same plan differs from the eager arm in one run and agrees in the next",
        place=f"{len(plan.replays)} replays",
        expected="the same bits in both runs",
        got="a difference in the first run only",
        advice="look for atomics, races between streams or state outside the buffers",
    )


class Lockstep:
    """One run of one plan."""

    def __init__(self, component: Component, plan: Plan, backend: Backend, options: Options) -> None:
        self.component = component
        self.plan = plan
        self.backend = backend
        self.options = options
        self.outcome = Outcome()
        self.comparator = Comparator(options.immediate)
        self.differs = False

    def run(self) -> Outcome:
        """Capture, then step through the replays; stops at the first replay that shows an error."""
        with self.backend.active(), context.preserved(), one_thread():
            self.captured = Arm(self.component, self.backend)
            self.eager = Arm(self.component, self.backend)
            put_back(dict(self.eager.buffers.items()), dict(self.captured.buffers.items()))
            graphs = self._capture_all()
            try:
                if not self.outcome.of(Kind.REFUSAL):
                    self._replay_all(graphs)
                # Asked once, after the last replay; a damaged guard is then looked for replay by replay.
                guarded = "side_effects" in self.options.rungs and not self.options.immediate
                self.differs = guarded and bool(self.backend.damaged_guards())
                if self.options.pool_map:
                    self.outcome.overlaps = pool_map.overlaps(graphs)
            finally:
                for graph in graphs.values():
                    if graph is not None:
                        graph.recording.close()
            self.differs = self.comparator.pending() or self.differs
        self.outcome.counts.compared_bytes += self.comparator.compared_bytes
        return self.outcome

    def _capture_all(self) -> dict[Hashable, Graph | None]:
        """One graph per key of the plan, in the order of the capture cases, then keys that only replays have."""
        warmups = self.plan.warmups if self.options.warmups is None else self.options.warmups
        at: dict[Hashable, Case] = {}
        for case in self.plan.captures:
            at.setdefault(self.captured.key(case), case)
        late = {self.captured.key(case): case for case in self.plan.replays}
        for key, case in late.items():
            at.setdefault(key, case)
        if self.options.capture_at is not None:
            at[self.captured.key(self.options.capture_at)] = self.options.capture_at
        pool = self.pool = self.backend.pool()
        graphs: dict[Hashable, Graph | None] = {}
        for key, case in at.items():
            pool = self.backend.pool() if self.options.own_pools else pool
            graphs[key] = capture(
                self.captured, case, warmups, pool, self.outcome, self.options.unaware, list(graphs.values())
            )
            self.outcome.counts.keys[repr(key)] = KeyCounts(int(key in late), int(graphs[key] is not None))
            if self.outcome.of(Kind.REFUSAL):
                break
        judge_growth(self.component.allocation, [graph for graph in graphs.values() if graph], self.outcome)
        put_back(dict(self.eager.buffers.items()), dict(self.captured.buffers.items()), self.component.restores)
        return graphs

    def _replay_all(self, graphs: dict[Hashable, Graph | None]) -> None:
        last: Step | None = None
        keys = [self.captured.key(case) for case in self.plan.replays]
        pool = None if self.options.own_pools else self.pool
        neighbours = Neighbours(self.plan, self.backend, pool, graphs, keys)
        for number, case in enumerate(self.plan.replays):
            neighbours.before_replay(number)
            graph = graphs.get(keys[number])
            if graph is None:
                continue
            self.outcome.counts.cases += 1
            step = self._step(graph, case, number)
            try:
                if not step.stage():
                    continue
                step.replay(first=last is None)
            except CaptureRefused as refused:
                self.outcome.symptoms.append(Symptom(Kind.REFUSAL, refusal_finding(refused, case, number), number))
                break
            last = step
            self.outcome.counts.keys[repr(keys[number])].replays += not self.outcome.of(Kind.CRASH)
            neighbours.after_step()
            if self.outcome.of(Kind.LEDGER, Kind.CRASH) or self._mismatch():
                break
        neighbours.close()
        if last is not None and not self.outcome.errors:
            last.compare_history()
            self._compare_state()

    def _step(self, graph: Graph, case: Case, number: int) -> Step:
        return Step(
            self.component,
            self.captured,
            self.eager,
            graph,
            case,
            number,
            self.outcome,
            self.comparator,
            self.options,
        )

    def _mismatch(self) -> bool:
        return any(symptom.step is not None for symptom in self.outcome.errors)

    def _compare_state(self) -> None:
        """Python state that differs between the arms is state that does not replay."""
        ours, theirs = (reachable.plain_state(arm.component) for arm in (self.captured, self.eager))
        changed = [name for name in ours if name in theirs and ours[name] != theirs[name]]
        if changed:
            self.outcome.notes.append(_host_state(changed, ours, theirs))


def _host_state(changed: list[str], ours: dict[str, str], theirs: dict[str, str]) -> Finding:
    return Finding(
        code="GC308",
        message=f"Python state differs between the captured and the eager arm: {', '.join(changed[:4])}",
        severity=Severity.WARNING,
        expected=", ".join(f"{name} = {theirs[name]}" for name in changed[:4]),
        got=", ".join(f"{name} = {ours[name]}" for name in changed[:4]),
        advice="keep it in a buffer of mutates, or move the bookkeeping out of run()",
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """CPU reductions depend on the number of threads; the oracle runs on one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
