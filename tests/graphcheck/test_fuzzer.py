"""The search: the same seed gives the same report, time and Ctrl-C end it, the database is replayed first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from graphcheck.checker import check
from graphcheck.errors import ComponentRaised, MalformedFile
from graphcheck.finding import Verdict
from graphcheck.fuzzer import Progress, fuzz
from graphcheck.plan import Plan
from graphcheck.repro import load, replay
from graphcheck.zoo.frozen import SlicesToLongest
from graphcheck.zoo.oracle import AccumulatesUninitialised
from graphcheck.zoo.rows import MaskedSum


def without_times(report: Any) -> dict[str, Any]:
    data: dict[str, Any] = report.to_json()
    for target in data["targets"]:
        del target["timings"]
    return data


@pytest.mark.parametrize("component", [MaskedSum, SlicesToLongest])
def test_the_same_seed_gives_the_same_report_apart_from_times(component: type[MaskedSum]) -> None:
    first, second = (fuzz(component, backend="emulator", examples=12, seed=5) for _ in range(2))
    assert without_times(first) == without_times(second)


def test_another_seed_gives_other_plans() -> None:
    first, second = (fuzz(MaskedSum, backend="emulator", examples=12, seed=seed) for seed in (5, 6))
    assert first.targets[0].counts != second.targets[0].counts


def test_ctrl_c_keeps_what_was_found() -> None:
    def interrupt(progress: Progress) -> None:
        if progress.plans == 3:
            raise KeyboardInterrupt

    report = fuzz(MaskedSum, backend="emulator", examples=50, seed=1, progress=interrupt)
    target = report.targets[0]
    assert target.stopped == "interrupted"
    assert target.counts.plans == 3
    assert target.verdict is Verdict.PASS


def test_time_ends_the_search() -> None:
    target = fuzz(MaskedSum, backend="emulator", seconds=1e-9, seed=1).targets[0]
    assert target.stopped == "time"
    assert target.counts.plans == 0
    assert target.verdict is Verdict.FAIL


def test_the_database_replays_the_failing_plan_first(tmp_path: Path) -> None:
    first = fuzz(SlicesToLongest, backend="emulator", examples=40, seed=1, database=tmp_path).targets[0]
    assert first.counts.plans > 1
    again = fuzz(SlicesToLongest, backend="emulator", examples=40, seed=77, database=tmp_path).targets[0]
    assert again.counts.plans == 1
    assert again.verdict is Verdict.FAIL


def test_a_repro_file_holds_what_ran_and_fails_until_it_is_fixed(tmp_path: Path) -> None:
    name = "graphcheck.zoo.frozen:SlicesToLongest"
    report = fuzz(SlicesToLongest, backend="emulator", examples=40, seed=1, out=tmp_path, target=name)
    path = report.targets[0].repro
    assert path is not None
    assert load(path).plan == Plan.from_json(report.targets[0].plan)
    assert load(path).codes[0] == "GC302"
    assert replay(path).exit_code == 1
    data = json.loads(path.read_text())
    data["target"] = "graphcheck.zoo.frozen:SumsToCapacity"
    path.write_text(json.dumps(data))
    assert replay(path).exit_code == 0


def test_check_runs_one_plan() -> None:
    plan = fuzz(SlicesToLongest, backend="emulator", examples=40, seed=1).targets[0].plan
    report = check(SlicesToLongest(), Plan.from_json(plan), backend="emulator")
    assert report.exit_code == 1
    assert report.targets[0].findings[0].code == "GC302"
    assert report.targets[0].counts.plans == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "other"}', '{"schema": "graphcheck-repro/1"}'])
def test_a_malformed_repro_file_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(MalformedFile, match=r"broken\.json"):
        load(path)


class Raises(MaskedSum):
    def run(self, buffers: Any) -> Any:
        raise ZeroDivisionError("by hand")


def test_a_component_that_raises_is_named_with_its_line() -> None:
    with pytest.raises(ComponentRaised, match=r"Raises.run raised ZeroDivisionError: by hand at .*test_fuzzer.py"):
        fuzz(Raises, backend="emulator", examples=3)


class DriftsFromTheSecondReplay(AccumulatesUninitialised):
    """Its first failing plan differs from eager at the second replay; the first replay alone is not deterministic."""

    def cases(self) -> Any:
        return MaskedSum().cases()


def test_a_plan_is_shrunk_by_the_strongest_evidence_that_its_small_form_shows() -> None:
    """Expected: one replay with one length of 1, called not deterministic."""
    target = fuzz(DriftsFromTheSecondReplay, backend="emulator", examples=30, seed=1).targets[0]
    assert target.findings[0].code == "GC960"
    assert target.plan is not None
    (case,) = Plan.from_json(target.plan).replays
    assert sorted(case.fields["lens"].values) == [0, 0, 0, 1]


class DiffersOnce(MaskedSum):
    """What its consumer sees differs between the arms in the first run of the process only."""

    seen = [0, 1]

    def observe(self, buffers: Any, outputs: Any) -> Any:
        return torch.tensor(self.seen.pop() if self.seen else 7)


def test_a_failure_that_does_not_come_again_is_reported_all_the_same(tmp_path: Path) -> None:
    """Expected: a failing verdict that says it was seen once, with the plan as it was drawn; no pass."""
    target = fuzz(DiffersOnce, backend="emulator", examples=3, seed=1, out=tmp_path).targets[0]
    assert target.verdict is Verdict.FAIL
    assert target.findings[0].code == "GC960"
    assert "seen once" in target.findings[0].evidence[-1]
    assert target.plan is not None
    assert target.repro is not None
