"""Plan options: a neighbour in the pool and evictions, as JSON, when shrinking, and when a plan is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from graphcheck.backend import resolve
from graphcheck.backend.emulator import EmulatorBackend
from graphcheck.cases import Case, Contents, Lengths
from graphcheck.checker import check
from graphcheck.component import Component
from graphcheck.errors import EnvironmentUnable, MalformedFile, PlanError
from graphcheck.finding import Severity
from graphcheck.oracle.lockstep import Options, run_plan
from graphcheck.oracle.static_ranges import never_staged
from graphcheck.oracle.symptom import Kind
from graphcheck.oracle.vacuity import never_replayed
from graphcheck.plan import Plan
from graphcheck.report import Counts, KeyCounts
from graphcheck.shrinker import Shrinker
from graphcheck.strategies import plans
from graphcheck.zoo.padding import FillsTile, ReadsUnstaged
from graphcheck.zoo.pools import CopiesOut, HandsOutBoth, HandsOutCopies, OwnsWorkspace, SharesPool, SharesWorkspace
from graphcheck.zoo.rows import MaskedSum


def at(length: int = 1, **fields: Any) -> Case:
    lens = Lengths((length,) * 4, 1, 24)
    return Case(lens=lens, x=Contents("normal", length), **fields).through_json()


def drawn(component: Component, examples: int, pool_options: bool = True) -> list[Plan]:
    found: list[Plan] = []

    @seed(3)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(plans(component.cases(), component.key, component.warmup, pool_options=pool_options))
    def draw(plan: Plan) -> None:
        found.append(plan)

    draw()
    return found


def test_options_go_through_json_and_older_files_have_none() -> None:
    plan = Plan((at(),), (at(2), at(3)), 1, neighbour=True, evict=1)
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.through_json() == plan
    plain = Plan((at(),), (at(2),))
    assert set(plain.to_json()) == {"captures", "warmups", "replays"}
    assert Plan.from_json(plain.to_json()) == plain


@pytest.mark.parametrize(("option", "value"), [("neighbour", 1), ("neighbour", "yes"), ("evict", True), ("evict", "1")])
def test_an_option_of_another_type_is_refused_in_words(option: str, value: object) -> None:
    data = {**Plan((at(),), (at(),)).to_json(), option: value}
    with pytest.raises(MalformedFile, match=f"{option} of a plan must be"):
        Plan.from_json(data)


def test_an_eviction_before_the_first_replay_is_the_earliest() -> None:
    with pytest.raises(PlanError, match="cannot evict"):
        Plan((at(),), (at(),), evict=-1)


def test_options_are_the_first_to_go() -> None:
    plan = Plan((at(),), (at(2), at(3)), 1, neighbour=True, evict=1)
    first, second = list(plan.simpler())[:2]
    assert (first.neighbour, first.evict) == (False, 1)
    assert (second.neighbour, second.evict) == (True, None)
    least = Shrinker(lambda plan: True).shrink(plan)
    assert (least.neighbour, least.evict) == (False, None)


def test_graphs_are_evicted_between_the_same_replays_when_others_are_dropped() -> None:
    """Expected: a failure that needs an eviction right before the case of length 9 keeps exactly that."""

    def fails(plan: Plan) -> bool:
        longest = [max(case.fields["lens"].values) for case in plan.replays]
        return plan.evict is not None and longest[plan.evict : plan.evict + 1] == [9]

    least = Shrinker(fails).shrink(Plan((at(),), (at(2), at(3), at(9), at(4)), evict=2))
    assert (len(least.replays), least.evict) == (1, 0)


def test_some_plans_have_options_and_the_same_bits_have_the_same_ones() -> None:
    """Expected: each option in a share of the plans, most without any, and the draw repeats."""
    first, second = drawn(SharesPool(), 200), drawn(SharesPool(), 200)
    assert first == second
    assert 10 < sum(plan.neighbour for plan in first) < 60
    assert 10 < sum(plan.evict is not None for plan in first) < 100


def test_graphs_are_also_replayed_in_an_order_other_than_that_of_their_capture() -> None:
    """Expected: of the plans that replay two keys, a good part begins with the graph that was captured last."""
    component, orders = SharesPool(), []
    for plan in drawn(component, 100):
        captured = list(dict.fromkeys(map(component.key, (*plan.captures, *plan.replays))))
        replayed = list(dict.fromkeys(map(component.key, plan.replays)))
        if len(replayed) > 1:
            orders.append(replayed == captured)
    assert len(orders) > 20
    assert 0.2 < sum(orders) / len(orders) < 0.8


def both(name: str) -> Plan:
    return Plan((at(**{name: False}),), (at(2, **{name: False}), at(3, **{name: True}), at(4, **{name: False})), 0)


@pytest.mark.parametrize(
    ("made", "name", "fails"),
    [(HandsOutBoth, "doubled", True), (HandsOutCopies, "doubled", False), (CopiesOut, "doubled", False)],
)
def test_a_neighbour_destroys_outputs_that_nobody_copied(made: Callable[[], Component], name: str, fails: bool) -> None:
    alone, crowded = both(name), Plan(both(name).captures, both(name).replays, 0, neighbour=True)
    assert not run_plan(made(), alone, resolve("emulator")).failed
    outcome = run_plan(made(), crowded, resolve("emulator"))
    assert outcome.failed is fails
    assert bool(outcome.of(Kind.OBSERVE)) is fails


@pytest.mark.parametrize(("made", "fails"), [(SharesWorkspace, True), (OwnsWorkspace, False)])
def test_a_workspace_goes_with_the_graph_that_allocated_it(made: Callable[[], Component], fails: bool) -> None:
    captures, replays = (at(doubled=False), at(doubled=True)), (at(2, doubled=False), at(3, doubled=True))
    backend = resolve("emulator")
    assert not run_plan(made(), Plan(captures, replays, 0), backend).failed
    outcome = run_plan(made(), Plan(captures, replays, 0, evict=1), backend, Options(immediate=True))
    assert [symptom.finding.code for symptom in outcome.errors] == (["GC411"] if fails else [])


def test_a_graph_that_is_needed_again_is_not_evicted() -> None:
    """Expected: with an eviction after the first replay, only the graph of the last two replays is left."""
    captures = (at(doubled=False), at(doubled=True))
    replays = (at(2, doubled=False), at(3, doubled=True), at(4, doubled=False))
    outcome = run_plan(SharesWorkspace(), Plan(captures, replays, 0, evict=1), resolve("emulator"))
    assert not outcome.failed
    assert outcome.counts.replays == 3


def test_the_neighbour_overwrites_free_blocks_and_outputs_and_nothing_else() -> None:
    backend = EmulatorBackend()
    with backend.active():
        held = torch.ones(64, device="cuda")

        def region() -> Mapping[str, torch.Tensor]:
            return {"out": (held * 2 + 1) * 3}

        pool = backend.pool()
        recording = backend.record(region, pool)
        recording.replay()
        own = backend.neighbour(pool, [recording.outputs["out"], held])
        assert own is not None
        own.replay()
        assert bool(recording.outputs["out"].isnan().all())
        assert bool((held == 1).all())
        recording.replay()
        assert bool((recording.outputs["out"] == 9).all())
        own.close()
        assert backend.neighbour(backend.pool(), [held]) is None


def test_the_pool_map_names_the_output_and_the_line_that_overwrites_it() -> None:
    plan = Plan((at(doubled=False), at(doubled=True)), (at(2, doubled=False),), 0)
    outcome = run_plan(SharesPool(), plan, resolve("emulator"), Options(pool_map=True))
    assert any(
        line.startswith("output out of the graph of key True: the graph of key False writes there (")
        for line in outcome.overlaps
    ), outcome.overlaps
    assert run_plan(SharesPool(), plan, resolve("emulator")).overlaps == []


def test_an_order_other_than_that_of_the_captures_is_said_to_be_the_cause() -> None:
    replays = (at(2, doubled=True), at(3, doubled=False))
    report = check(SharesPool(), Plan((at(doubled=False),), replays, 0), backend="emulator")
    (target,) = report.targets
    assert target.findings[0].code == "GC502"
    assert "replayed in capture order: the mismatch is gone" in target.findings[0].evidence


def test_captures_and_replays_are_counted_by_key() -> None:
    plan = Plan((at(doubled=False), at(doubled=True)), (at(2, doubled=True), at(3, doubled=True)), 0)
    (target,) = check(CopiesOut(), plan, backend="emulator").targets
    assert target.counts.keys == {"False": KeyCounts(0, 1, 0), "True": KeyCounts(1, 1, 2)}
    assert target.to_json()["counts"]["keys"]["True"] == {"plans": 1, "captures": 1, "replays": 2}


def test_a_key_that_was_drawn_and_never_replayed_is_a_warning() -> None:
    counts = Counts(replays=9, keys={"1": KeyCounts(4, 4, 9), "2": KeyCounts(3, 0, 0), "3": KeyCounts(2, 0, 0)})
    (finding,) = never_replayed(counts)
    assert (finding.code, finding.severity) == ("GC608", Severity.WARNING)
    assert "key 2" in finding.message
    assert never_replayed(Counts(keys={"1": KeyCounts(4, 4, 0)})) == []


def test_uninitialised_elements_that_graphs_read_are_a_warning_and_constants_a_note() -> None:
    cases = [at(5), at(9)]
    warning, note = never_staged(ReadsUnstaged(), resolve("emulator"), cases)
    assert (warning.code, warning.severity, warning.place) == ("GC704", Severity.WARNING, "x")
    assert "32 of 128 elements" in warning.message
    assert note.severity is Severity.NOTE and "columns (32 of 32 elements)" in note.message
    (only,) = never_staged(FillsTile(), resolve("emulator"), cases)
    assert only.severity is Severity.NOTE and "x (32 of 128 elements)" in only.message


class WithoutOptions(EmulatorBackend):
    """A backend that carries out no neighbour and no eviction."""

    pool_options = False


@pytest.mark.parametrize("option", [{"neighbour": True}, {"evict": 1}])
def test_a_backend_that_cannot_carry_an_option_out_refuses_the_plan(option: dict[str, Any]) -> None:
    """Expected: no outcome that would pass for the plan's."""
    case = Case(lens=Lengths((3, 1, 1, 1), 0, 24), x=Contents("normal", 1))
    plan = Plan((case,), (case, case), **option)
    assert not run_plan(MaskedSum(), plan, EmulatorBackend()).failed
    with pytest.raises(EnvironmentUnable, match="does not carry out"):
        run_plan(MaskedSum(), plan, WithoutOptions())


def test_where_options_are_not_carried_out_none_are_drawn() -> None:
    """Expected: the same plans of a seed, without the options."""
    with_options, without = drawn(SharesPool(), 60), drawn(SharesPool(), 60, pool_options=False)
    assert any(plan.has_pool_options for plan in with_options)
    assert [replace(plan, neighbour=False, evict=None) for plan in with_options] == without
