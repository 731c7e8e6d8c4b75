"""Isolation: a child that dies or hangs is a finding, and the search goes on."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from graphcheck.cases import Case, Contents, Lengths
from graphcheck.errors import ComponentRaised, UsageError
from graphcheck.oracle.lockstep import Options
from graphcheck.oracle.symptom import Kind
from graphcheck.plan import Plan
from graphcheck.worker import IsolatedRunner
from graphcheck.zoo.frozen import SlicesToLongest
from graphcheck.zoo.rows import MaskedSum


def plan_of(*longest: int) -> Plan:
    cases = tuple(Case(lens=Lengths((length, 1, 1, 1), 0, 24), x=Contents("normal", 1)) for length in longest)
    return Plan(cases[:1], cases[1:] or cases)


class Dies(MaskedSum):
    def stage(self, buffers: Any, case: Any) -> None:
        if int(case.lens.max()) == 13:
            os._exit(7)
        super().stage(buffers, case)


class Hangs(MaskedSum):
    def stage(self, buffers: Any, case: Any) -> None:
        while int(case.lens.max()) == 13:
            time.sleep(0.05)
        super().stage(buffers, case)


class Raises(MaskedSum):
    def run(self, buffers: Any) -> Any:
        raise ZeroDivisionError("by hand")


def test_a_child_runs_plans_and_names_causes() -> None:
    runner = IsolatedRunner(SlicesToLongest(), "emulator")
    try:
        outcome = runner.run(plan_of(3, 20), Options(immediate=True))
        assert outcome.failed
        assert runner.explain(plan_of(3, 20), outcome)[0].code == "GC302"
        assert not runner.run(plan_of(20, 20), Options()).failed
    finally:
        runner.close()


def test_a_child_that_dies_is_a_crash_and_the_next_plan_runs() -> None:
    runner = IsolatedRunner(Dies(), "emulator")
    try:
        outcome = runner.run(plan_of(3, 13), Options())
        assert [symptom.kind for symptom in outcome.symptoms] == [Kind.CRASH]
        assert "exit status 7" in outcome.symptoms[0].finding.message
        assert not runner.run(plan_of(3, 12), Options()).failed
    finally:
        runner.close()


def test_a_child_that_hangs_is_ended() -> None:
    runner = IsolatedRunner(Hangs(), "emulator", limit=20.0)
    try:
        assert not runner.run(plan_of(3, 12), Options()).failed
        runner._limit = 1.0
        outcome = runner.run(plan_of(3, 13), Options())
        assert "hangs" in outcome.symptoms[0].finding.message
    finally:
        runner.close()


def test_errors_of_the_component_come_back_as_what_they_are() -> None:
    runner = IsolatedRunner(Raises(), "emulator")
    try:
        with pytest.raises(ComponentRaised, match="by hand"):
            runner.run(plan_of(3, 4), Options())
    finally:
        runner.close()


def test_a_component_that_cannot_be_sent_is_refused() -> None:
    class Local(MaskedSum):
        pass

    with pytest.raises(UsageError, match="module level"):
        IsolatedRunner(Local(), "emulator")
