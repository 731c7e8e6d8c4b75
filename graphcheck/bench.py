"""Speed of one component: eager against replay, and what verification costs beside the executions that it needs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from graphcheck.backend import Backend, resolve
from graphcheck.cases import Case
from graphcheck.compare import Comparator
from graphcheck.component import Component
from graphcheck.errors import UsageError
from graphcheck.finding import RUNGS
from graphcheck.oracle.arm import Arm, clone
from graphcheck.oracle.lockstep import Options, one_thread, run_plan
from graphcheck.plan import Plan

# Replays of the longer plan of a pair; a step's time is what they add.
_STEPS = 30
_ROUNDS = 3


class _PlainCpu:
    """Plain eager execution on the CPU, for comparison: no modes, no wrapper tensors."""

    device = torch.device("cpu")

    def allocating(self) -> nullcontext[None]:
        return nullcontext()

    def rng_state(self) -> torch.Tensor:
        return torch.get_rng_state()


def bench(component: Component, case: Case, *, backend: str = "auto", repeats: int = 30) -> dict[str, Any]:
    """Medians in seconds, and ratios.

    Args:
        component: never allocated.
        case: what every step is staged at.
        backend: ``auto``, ``cuda`` or ``emulator``.
        repeats: how often each thing is timed.

    Returns:
        ``eager`` and ``replay`` of `run`; on the emulator also ``cpu``, the same code on plain CPU tensors, and
        ``replay_over_cpu``. ``step`` is one verified replay after a plan's first, ``bound`` the executions that it
        needs (one eager run, one replay, one comparison of the outputs that the host reads), ``share`` the one over
        the other. ``rungs`` holds what each rung adds to a plan of two replays.
    """
    machine = resolve(backend)
    times: dict[str, Any] = {"component": component.title, "backend": machine.name, "case": repr(case)}
    # Bound and step in turn, so that a slow minute of the machine falls on both.
    rounds = [
        {**_executions(component, machine, case, max(3, repeats // _ROUNDS)), "step": _step(component, machine, case)}
        for _ in range(_ROUNDS)
    ]
    times.update({name: statistics.median(each[name] for each in rounds) for name in rounds[0]})
    if machine.name == "emulator":
        times["cpu"] = _on_cpu(component, case, repeats)
        times["replay_over_cpu"] = times["replay"] / times["cpu"]
    times["eager_over_replay"] = times["eager"] / times["replay"]
    times["share"] = statistics.median(each["bound"] / each["step"] for each in rounds)
    times["verified_replays_per_second"] = 1 / times["step"]
    times["plan_of_two"], times["rungs"] = _rungs(component, machine, case, max(3, repeats // 6))
    return times


def _executions(component: Component, machine: Backend, case: Case, repeats: int) -> dict[str, float]:
    """Medians of the executions, seconds, on one CPU thread as in the oracle."""
    with machine.active(), one_thread():
        arm, other = Arm(component, machine), Arm(component, machine)
        for each in (arm, other):
            refusal = each.stage(case)
            if refusal is not None:
                raise UsageError(f"{component.title} refuses the case ({refusal}); give another with --case")
        arm.run()
        other.eager(case)
        recording = arm.record(machine.pool())
        expected = {name: clone(tensor) for name, tensor in recording.outputs.items()}

        def eager() -> None:
            other.eager(case)
            machine.synchronize()

        def region() -> None:
            other.run()
            machine.synchronize()

        def replay() -> None:
            recording.replay()
            machine.synchronize()

        def needed() -> None:
            """What a verified replay cannot do without."""
            recording.replay()
            other.eager(case)
            comparator = Comparator(immediate=False)
            for name, tensor in recording.outputs.items():
                comparator.check(name, expected[name], tensor, None, lambda mismatch: None)
            comparator.pending()

        result = {
            "eager": median(region, repeats),
            "eager_engine": median(eager, repeats),
            "replay": median(replay, repeats),
            "bound": median(needed, repeats),
        }
        recording.close()
    return result


def _seconds(
    component: Component, machine: Backend, case: Case, replays: int, rungs: frozenset[str], repeats: int
) -> float:
    """Median seconds of a plan that replays one case several times."""
    plan, options = Plan((case,), (case,) * replays, component.warmup), Options(rungs=rungs)

    def run() -> None:
        outcome = run_plan(component, plan, machine, options)
        if outcome.failed:
            raise UsageError(f"{component.title} fails at {case}: {outcome.errors[0].finding.message}; fix it first")

    run()
    return median(run, repeats)


def _step(component: Component, machine: Backend, case: Case) -> float:
    """Seconds of one more verified replay in a plan."""
    # Determinism and reference are asked at a plan's first replay only, and would drown the difference.
    steady = frozenset(RUNGS) - {"determinism", "reference"}
    short, long = (_seconds(component, machine, case, replays, steady, 3) for replays in (2, 2 + _STEPS))
    return (long - short) / _STEPS


def _rungs(component: Component, machine: Backend, case: Case, repeats: int) -> tuple[float, dict[str, float]]:
    """Seconds of a plan of two replays, and what each rung adds to it."""
    every = frozenset(RUNGS)
    whole = _seconds(component, machine, case, 2, every, repeats)
    without = {
        rung: _seconds(component, machine, case, 2, every - {rung}, repeats) for rung in RUNGS if rung != "eager"
    }
    return whole, {rung: whole - seconds for rung, seconds in without.items()}


def _on_cpu(component: Component, case: Case, repeats: int) -> float:
    plain: Any = _PlainCpu()
    with one_thread():
        arm = Arm(component, plain)
        arm.stage(case)
        arm.run()
        return median(lambda: arm.run(), repeats)


def median(action: Callable[[], object], repeats: int) -> float:
    """Median wall time of ``action``, seconds."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return statistics.median(times)
