"""A runner carries out what a search asks for one component: run a plan, name a cause, test influence."""

from __future__ import annotations

from typing import Any, Protocol

from graphcheck.backend import resolve
from graphcheck.cases import Case
from graphcheck.component import Component
from graphcheck.environment import environment
from graphcheck.finding import Finding
from graphcheck.oracle.attribution import attribute, first_difference
from graphcheck.oracle.lockstep import Options, run_plan
from graphcheck.oracle.static_ranges import never_staged
from graphcheck.oracle.symptom import Outcome
from graphcheck.oracle.vacuity import Influence
from graphcheck.plan import Plan


class Runner(Protocol):
    """What a search needs; in this process or in a child."""

    backend_name: str
    pool_options: bool

    def run(self, plan: Plan, options: Options) -> Outcome:
        """Run a plan in lockstep."""

    def explain(self, plan: Plan, outcome: Outcome) -> list[Finding]:
        """Findings for a failing plan, cause first."""

    def influence(self, cases: list[Case]) -> list[Finding] | None:
        """Warnings and notes of a whole campaign: case fields that change nothing, static inputs that nobody stages.

        None if the question could not be answered.
        """

    def environment(self) -> dict[str, Any]:
        """Versions, device and active checks of where plans run."""

    @property
    def exhausted(self) -> bool:
        """Whether so many plans crashed that further ones are not run."""

    def close(self) -> None:
        """Give back what the runner holds."""


class LocalRunner:
    """Runs in this process.

    Args:
        component: never allocated.
        backend: ``auto``, ``cuda`` or ``emulator``.
    """

    def __init__(self, component: Component, backend: str) -> None:
        self._component = component
        self._backend = resolve(backend)
        self.backend_name = self._backend.name
        self.pool_options = self._backend.pool_options

    def run(self, plan: Plan, options: Options) -> Outcome:
        return run_plan(self._component, plan, self._backend, options)

    def explain(self, plan: Plan, outcome: Outcome) -> list[Finding]:
        findings = attribute(self._component, plan, self._backend, outcome)
        difference = first_difference(self._component, plan, self._backend, outcome)
        if difference is not None and findings:
            findings[0] = findings[0].with_evidence(f"first operation whose result differs: {difference}")
        return findings

    def influence(self, cases: list[Case]) -> list[Finding]:
        influence = Influence(self._component, self._backend).findings(cases)
        return [*influence, *never_staged(self._component, self._backend, cases)]

    def environment(self) -> dict[str, Any]:
        return environment(self.backend_name)

    @property
    def exhausted(self) -> bool:
        """Never: a plan that crashes takes this process along."""
        return False

    def synchronize(self) -> None:
        """Wait until the device is idle.

        Raises:
            RuntimeError: a launch of the last plan failed.
        """
        self._backend.synchronize()

    def sound(self) -> bool:
        """Whether this process is fit for further captures."""
        return self._backend.sound()

    def close(self) -> None:
        """Nothing is held."""
