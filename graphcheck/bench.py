"""Speed of one component: eager against replay, and the verified loop, as ratios within one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from graphcheck.backend import Backend, resolve
from graphcheck.cases import Case
from graphcheck.component import Component
from graphcheck.errors import UsageError
from graphcheck.fuzzer import fuzz
from graphcheck.oracle.arm import Arm
from graphcheck.strategies import sample


class _PlainCpu:
    """Plain eager execution on the CPU, for comparison: no modes, no wrapper tensors."""

    device = torch.device("cpu")

    def allocating(self) -> nullcontext[None]:
        return nullcontext()

    def rng_state(self) -> torch.Tensor:
        return torch.get_rng_state()


def bench(component: Component, *, backend: str = "auto", repeats: int = 30, examples: int = 10) -> dict[str, Any]:
    """Medians in seconds, and ratios.

    Args:
        component: never allocated.
        backend: ``auto``, ``cuda`` or ``emulator``.
        repeats: how often each thing is timed.
        examples: plans of the verified loop.

    Returns:
        ``eager`` and ``replay`` of `run` on the backend; on the emulator also ``cpu``, the same code on plain CPU
        tensors, and ``replay_over_cpu``; ``verified_replays_per_second`` of a fuzz run.
    """
    machine = resolve(backend)
    case = sample(component)
    times: dict[str, Any] = {"component": component.title, "backend": machine.name, "case": repr(case)}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times.update(_on_backend(component, machine, case, repeats))
        if machine.name == "emulator":
            times["cpu"] = _on_cpu(component, case, repeats)
            times["replay_over_cpu"] = times["replay"] / times["cpu"]
    finally:
        torch.set_num_threads(threads)
    times["eager_over_replay"] = times["eager"] / times["replay"]
    started = time.perf_counter()
    counts = fuzz(component, backend=backend, examples=examples, seed=1).targets[0].counts
    times["verified_replays_per_second"] = counts.replays / (time.perf_counter() - started)
    return times


def _on_backend(component: Component, machine: Backend, case: Case, repeats: int) -> dict[str, float]:
    with machine.active():
        arm = Arm(component, machine)
        _stage(arm, case)
        arm.run()
        recording = machine.record(arm.run, machine.pool())
        recording.replay()
        machine.synchronize()

        def eager() -> None:
            arm.run()
            machine.synchronize()

        def replay() -> None:
            recording.replay()
            machine.synchronize()

        result = {"eager": median(eager, repeats), "replay": median(replay, repeats)}
        recording.close()
    return result


def _on_cpu(component: Component, case: Case, repeats: int) -> float:
    plain: Any = _PlainCpu()
    arm = Arm(component, plain)
    _stage(arm, case)
    arm.run()
    return median(lambda: arm.run(), repeats)


def _stage(arm: Arm, case: Case) -> None:
    refusal = arm.stage(case)
    if refusal is not None:
        raise UsageError(f"{arm.component.title} refuses the drawn case ({refusal}); narrow cases()")


def median(action: Callable[[], object], repeats: int) -> float:
    """Median wall time of ``action``, seconds."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return statistics.median(times)
