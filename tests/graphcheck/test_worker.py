"""Isolation: a child that dies or hangs is a finding, and the search goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from graphcheck.cases import Case, Contents, Lengths
from graphcheck.errors import ComponentRaised, UsageError
from graphcheck.finding import RungStatus, Verdict
from graphcheck.fuzzer import fuzz
from graphcheck.oracle.lockstep import Options
from graphcheck.oracle.symptom import Kind
from graphcheck.plan import Plan
from graphcheck.registry import resolve
from graphcheck.worker import IsolatedRunner, Nursery
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


class DiesFromTwelve(MaskedSum):
    def stage(self, buffers: Any, case: Any) -> None:
        if int(case.lens.max()) >= 12:
            os._exit(7)
        super().stage(buffers, case)


class Exhausts(MaskedSum):
    def stage(self, buffers: Any, case: Any) -> None:
        if int(case.lens.max()) == 13:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 TiB.")
        super().stage(buffers, case)


class DiesWhenWarmedUp(MaskedSum):
    """Its first child runs anything; later ones die of the plan that the first one finished."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def stage(self, buffers: Any, case: Any) -> None:
        longest = int(case.lens.max())
        if longest == 13 or (longest == 12 and os.path.exists(self.marker)):
            Path(self.marker).touch()
            os._exit(7)
        super().stage(buffers, case)


class DiesWhenAsked(MaskedSum):
    """Every plan finishes; a case alone, which is how influence is asked, brings the child down."""

    def eager(self, buffers: Any, case: Any) -> Any:
        names = {frame.name for frame in traceback.extract_stack()}
        if "influence" in names:
            os._exit(7)
        return super().eager(buffers, case)


class Mutters(MaskedSum):
    def stage(self, buffers: Any, case: Any) -> None:
        if int(case.lens.max()) == 13:
            os.write(2, b"kernel.cu:7: Assertion `index < size` failed\n" * 3)
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


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    with Nursery() as made:
        yield made


def test_a_child_runs_plans_and_names_causes(nursery: Nursery) -> None:
    runner = IsolatedRunner(SlicesToLongest(), "emulator", nursery)
    outcome = runner.run(plan_of(3, 20), Options(immediate=True))
    assert outcome.failed
    assert runner.explain(plan_of(3, 20), outcome)[0].code == "GC302"
    assert not runner.run(plan_of(20, 20), Options()).failed


def test_a_child_serves_one_component_after_the_other(nursery: Nursery) -> None:
    """Expected: the same process, so that a sound device context is made once."""
    first = IsolatedRunner(SlicesToLongest(), "emulator", nursery)
    child = nursery.current
    assert first.run(plan_of(3, 20), Options()).failed
    second = IsolatedRunner(MaskedSum(), "emulator", nursery)
    assert not second.run(plan_of(3, 20), Options()).failed
    assert nursery.current is child
    assert first.run(plan_of(3, 20), Options()).failed


def test_a_child_that_dies_is_a_crash_and_the_next_plan_runs(nursery: Nursery) -> None:
    runner = IsolatedRunner(Dies(), "emulator", nursery)
    outcome = runner.run(plan_of(3, 13), Options())
    assert [symptom.kind for symptom in outcome.symptoms] == [Kind.CRASH]
    assert "exit status 7" in outcome.symptoms[0].finding.message
    assert not runner.run(plan_of(3, 12), Options()).failed


def test_a_plan_that_crashes_is_run_once(nursery: Nursery) -> None:
    """Expected: the second answer is the first, and costs no child."""
    runner = IsolatedRunner(Dies(), "emulator", nursery, crashes=1)
    first = runner.run(plan_of(3, 13), Options())
    assert runner.exhausted
    assert runner.run(plan_of(3, 13), Options(immediate=True)) is first
    assert not runner.run(plan_of(4, 13), Options()).failed


def test_a_crash_is_shrunk_by_bisecting_lengths_and_the_search_goes_on_with_the_next_target(
    nursery: Nursery, tmp_path: Path
) -> None:
    """Expected: one replay, the smallest length that crashes in one row, and a repro file; then a clean target."""
    runner = IsolatedRunner(DiesFromTwelve(), "emulator", nursery)
    target = fuzz(DiesFromTwelve(), examples=50, seed=1, runner=runner, out=tmp_path).targets[0]
    assert target.findings[0].code == "GC706"
    assert target.plan is not None
    plan = Plan.from_json(target.plan)
    assert [sorted(case.fields["lens"].values) for case in plan.replays] == [[0, 0, 0, 12]]
    assert target.repro is not None
    clean = fuzz(MaskedSum(), examples=5, seed=1, runner=IsolatedRunner(MaskedSum(), "emulator", nursery)).targets[0]
    assert clean.verdict is Verdict.PASS


def test_memory_that_runs_out_is_a_finding_of_its_own(nursery: Nursery) -> None:
    runner = IsolatedRunner(Exhausts(), "emulator", nursery)
    finding = runner.run(plan_of(3, 13), Options()).symptoms[0].finding
    assert finding.code == "GC506"
    assert finding.where is not None
    assert not runner.run(plan_of(3, 12), Options()).failed


def test_a_child_that_hangs_is_ended(nursery: Nursery) -> None:
    runner = IsolatedRunner(Hangs(), "emulator", nursery, limit=20.0)
    runner.run(plan_of(3, 11), Options())
    assert not runner.run(plan_of(3, 12), Options()).failed
    outcome = runner.run(plan_of(3, 13), Options())
    assert "hangs" in outcome.symptoms[0].finding.message


def test_a_child_that_dies_while_it_is_warmed_up_is_not_blamed_on_the_next_plan(
    nursery: Nursery, tmp_path: Path
) -> None:
    """Expected: the plan after the crash runs in a child of its own and passes."""
    component = DiesWhenWarmedUp(str(tmp_path / "marker"))
    runner = IsolatedRunner(component, "emulator", nursery)
    assert not runner.run(plan_of(3, 12), Options()).failed
    assert runner.run(plan_of(3, 13), Options()).failed
    assert not runner.run(plan_of(3, 11), Options()).failed


def test_vacuity_is_not_run_where_the_child_goes_down_at_its_question(nursery: Nursery) -> None:
    """Expected: no pass, although every plan passed."""
    runner = IsolatedRunner(DiesWhenAsked(), "emulator", nursery)
    target = fuzz(DiesWhenAsked(), examples=3, seed=1, runner=runner).targets[0]
    assert target.errors == []
    assert target.rungs["vacuity"] is RungStatus.NOT_RUN
    assert target.verdict is Verdict.NOT_RUN


def test_what_the_child_said_last_is_evidence(nursery: Nursery) -> None:
    outcome = IsolatedRunner(Mutters(), "emulator", nursery).run(plan_of(3, 13), Options())
    assert outcome.symptoms[0].finding.evidence == ("kernel.cu:7: Assertion `index < size` failed",)


def test_errors_of_the_component_come_back_as_what_they_are(nursery: Nursery) -> None:
    runner = IsolatedRunner(Raises(), "emulator", nursery)
    with pytest.raises(ComponentRaised, match="by hand"):
        runner.run(plan_of(3, 4), Options())


def test_a_component_that_cannot_be_sent_is_refused(nursery: Nursery) -> None:
    class Local(MaskedSum):
        pass

    with pytest.raises(UsageError, match="module level"):
        IsolatedRunner(Local(), "emulator", nursery)


def test_a_component_that_cannot_be_sent_is_made_again_from_its_target(nursery: Nursery, tmp_path: Path) -> None:
    """Expected: the child imports the file and makes the component."""
    source = "from graphcheck.zoo.rows import MaskedSum\nclass Held(MaskedSum):\n    made = staticmethod(lambda: 0)\n"
    path = tmp_path / "held.py"
    path.write_text(source + "    def __init__(self):\n        self.kept = lambda: 0\n", encoding="utf-8")
    target = f"{path}:Held"
    runner = IsolatedRunner(resolve(target), "emulator", nursery, target=target)
    assert not runner.run(plan_of(3, 4), Options()).failed


def test_the_child_does_not_create_a_device_context_before_it_has_work(nursery: Nursery) -> None:
    """Expected: importing what the child imports leaves CUDA uninitialised."""
    code = "import graphcheck.worker.serving, torch; print(torch.cuda.is_initialized())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
