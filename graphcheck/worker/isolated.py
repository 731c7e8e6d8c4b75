"""A runner whose plans may crash, hang or run out of memory without taking the search along.

The parent never touches the device.
"""

from __future__ import annotations

import pickle
import time
from typing import Any

from graphcheck.cases import Case
from graphcheck.component import Component
from graphcheck.errors import EnvironmentUnable, UsageError
from graphcheck.finding import Finding
from graphcheck.oracle.lockstep import Options
from graphcheck.oracle.symptom import Kind, Outcome, Symptom
from graphcheck.plan import Plan
from graphcheck.worker.child import Died, Nursery
from graphcheck.worker.serving import Raised

# Seconds that a child may take to import, create its device context and make the component.
_START = 300.0
# A plan may take this many times as long as the slowest that finished, and never less than the seconds below.
_PATIENCE, _LEAST_PATIENCE = 20, 5.0


class IsolatedRunner:
    """Runs a component in a child process.

    Args:
        component: never allocated; picklable, or made again from ``target``.
        backend: ``auto``, ``cuda`` or ``emulator``; resolved in the child.
        nursery: where children come from; closed by whoever made it.
        target: what the child makes the component from where it cannot be sent, and imports before it is.
        limit: seconds that one plan may take, at most.
        crashes: plans at most that may bring the child down; further ones are not run.

    Raises:
        UsageError: the component can neither be sent nor made again.
        EnvironmentUnable: the backend cannot run there.
    """

    def __init__(
        self,
        component: Component,
        backend: str,
        nursery: Nursery,
        *,
        target: str = "",
        limit: float = 120.0,
        crashes: int = 40,
    ) -> None:
        self._load = ("load", target, _pickled(component, target), backend)
        self._nursery = nursery
        self._limit = limit
        self._crashes_left = crashes
        self._slowest = 0.0
        self._finished: dict[str, Any] | None = None
        self._known: dict[str, Outcome] = {}
        self.backend_name, self.pool_options, self._environment = self._start()

    @property
    def exhausted(self) -> bool:
        """Whether so many plans crashed that further ones are not run."""
        return self._crashes_left <= 0

    def environment(self) -> dict[str, Any]:
        """Versions, device and active checks, as the child sees them."""
        return self._environment

    def run(self, plan: Plan, options: Options) -> Outcome:
        """Run a plan; one that brings the child down is a crash, remembered so that it happens once."""
        known = self._known.get(plan.digest)
        if known is not None:
            return known
        if self.exhausted:
            return Outcome()
        try:
            answer, took = self._ask("run", plan.to_json(), options)
        except Died as death:
            return self._crashed(plan, str(death), death.last_words)
        if not isinstance(answer, Raised):
            # The first plan of a child compiles and loads; it says nothing of how long the next may take.
            if self._finished is not None:
                self._slowest = max(self._slowest, took)
            self._finished = self._finished or plan.to_json()
            outcome: Outcome = answer
            return outcome
        if not answer.sticky and not answer.exhausted:
            raise answer.error
        # Out of memory: what the child holds would make the next plan fail as well.
        said = self._nursery.current.last_words() if answer.sticky and self._nursery.current is not None else ""
        self._nursery.drop()
        return self._crashed(plan, answer.words, said, answer)

    def explain(self, plan: Plan, outcome: Outcome) -> list[Finding]:
        """The cause; of a plan that crashes only the crash itself, since an intervention would crash as well."""
        if outcome.of(Kind.CRASH) and plan.digest in self._known:
            return [symptom.finding for symptom in outcome.symptoms]
        answer = self._answer("explain", plan.to_json(), outcome)
        return answer if isinstance(answer, list) else [symptom.finding for symptom in outcome.symptoms]

    def influence(self, cases: list[Case]) -> list[Finding] | None:
        """Warnings for case fields that change nothing; None where the child went down at the question."""
        answer = self._answer("influence", [case.to_json() for case in cases])
        return answer if isinstance(answer, list) else None

    def close(self) -> None:
        """Nothing is held: the child stays with the nursery."""

    def _crashed(self, plan: Plan, words: str, said: str, raised: Raised | None = None) -> Outcome:
        self._crashes_left -= 1
        self._known[plan.digest] = _crash(words, said, raised)
        return self._known[plan.digest]

    def _answer(self, *request: Any) -> Any:
        try:
            answer, _ = self._ask(*request)
        except Died:
            return None
        if isinstance(answer, Raised):
            if not answer.sticky and not answer.exhausted:
                raise answer.error
            self._nursery.drop()
            return None
        return answer

    def _ask(self, *request: Any) -> tuple[Any, float]:
        """The child's answer, and the seconds it took."""
        if self._nursery.current is None or self._nursery.owner is not self:
            self._start()
            self._warm_up()
        started = time.perf_counter()
        try:
            answer = self._nursery.child().ask(request, self._patience() if request[0] == "run" else _START)
        except (Died, KeyboardInterrupt):
            self._nursery.current = None
            raise
        if not answer.sound:
            # Its answer counts; the next plan gets a child in which nothing has failed.
            self._nursery.drop()
        return answer.value, time.perf_counter() - started

    def _warm_up(self) -> None:
        """What a fresh child does once is done with a plan that is known to end; if it dies of that, without."""
        if self._finished is None:
            return
        try:
            self._nursery.child().ask(("run", self._finished, Options()), _START)
        except Died:
            self._nursery.current = self._finished = None
            self._start()

    def _patience(self) -> float:
        """Seconds after which a plan hangs: far longer than any before it took; the first may compile kernels."""
        patience = max(_LEAST_PATIENCE, _PATIENCE * self._slowest) if self._slowest else self._limit
        return min(self._limit, patience)

    def _start(self) -> tuple[str, bool, dict[str, Any]]:
        """Give the component to a child; the backend it resolved, what that carries out, and its environment."""
        child = self._nursery.child()
        try:
            answer = child.ask(self._load, _START)
        except Died as death:
            self._nursery.current = None
            raise EnvironmentUnable(f"a child process cannot start: {death}; {death.last_words}") from death
        if isinstance(answer.value, Raised):
            raise answer.value.error
        self._nursery.owner = self
        name, pool_options, environment = answer.value
        return str(name), bool(pool_options), dict(environment)


def _pickled(component: Component, target: str) -> bytes:
    """The component for the child; empty if it must be made again from its target."""
    try:
        return pickle.dumps(component)
    except Exception as error:
        if target:
            return b""
        raise UsageError(
            f"{component.title} cannot be sent to a child process ({error}); define it at module level, "
            "or run it without isolation"
        ) from error


def _crash(words: str, said: str, raised: Raised | None) -> Outcome:
    exhausted = raised is not None and raised.exhausted
    finding = Finding(
        code="GC506" if exhausted else "GC706",
        message=f"the plan runs out of device memory: {words}"
        if exhausted
        else f"the plan brings the process down: {words}",
        where=raised.where if raised is not None else None,
        place="a replay or the capture of this plan",
        expected="a plan that finishes, or a case that the component refuses",
        got=words,
        advice="size buffers at allocate() for the most that will be asked, and refuse what does not fit in stage()"
        if exhausted
        else "check lengths, page ids and indices against the captured capacity; refuse what does not fit in stage()",
        evidence=(said,) if said else (),
    )
    outcome = Outcome(symptoms=[Symptom(Kind.CRASH, finding)])
    outcome.counts.cases = outcome.counts.replays = 1
    return outcome
