"""Causes on the host: code that knows it is captured, Python state that no replay changes, schedules, hooks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphcheck.finding import Finding
from graphcheck.oracle.arm import Arm
from graphcheck.oracle.lockstep import Options
from graphcheck.oracle.symptom import Kind
from graphcheck.watch import host_state, reachable
from graphcheck.watch.differential import baked

if TYPE_CHECKING:
    from graphcheck.oracle.attribution import Attribution


def capture_aware(study: Attribution) -> Finding | None:
    """GC307 if the mismatch is gone when the region is told that nothing is capturing."""
    case = study.plan.captures[0]
    told, fooled = study.record(case), study.record(case, unaware=True)
    if told is None or fooled is None or told == fooled:
        return None
    if not study.gone("the capture-status call answers no", Options(unaware=True)):
        return None
    left = study.only_in(fooled, told) or study.only_in(told, fooled)
    return study.named(
        "GC307",
        "the region computes something else while it is captured: it asks whether the stream is capturing",
        "use the capture-status call for assertions only, or make both branches compute the same",
        *([f"differs while capturing: {', '.join(left[:6])}"] if left else []),
    )


def python_state(study: Attribution) -> Finding | None:
    """GC308 (GC313 if hooks do it) if the mismatch is gone when arm A's Python state follows arm B's."""
    names = study.outcome.host_state
    if not names or study.symptom.kind is Kind.HISTORY:
        return None
    if not study.gone("the Python state that run() changes follows the eager arm", Options(host_state=True)):
        return None
    changed = ", ".join(names[:4])
    hooked = _changed_by_hooks(study)
    if hooked:
        return study.named(
            "GC313",
            f"a hook on {hooked[0]} changes {changed} on the host: hooks run at the capture and at no replay",
            "let the hook write to a device tensor, hook what stays outside the graph, or count replays instead",
            f"changed at the capture: {changed}",
        )
    return study.named(
        "GC308",
        f"run() changes {changed} on the host, once at the capture; no replay changes it again",
        "keep it in a buffer of mutates that the region advances, or advance it outside run()",
        f"changed at the capture: {changed}",
    )


def _changed_by_hooks(study: Attribution) -> list[str]:
    """Kinds of the modules whose hooks, once off, leave the Python state alone; empty where it changes all the same."""
    with study.backend.active():
        arm = Arm(study.component, study.backend)
        hooked = host_state.without_hooks(arm.component)
        if not hooked or arm.stage(study.case) is not None:
            return []
        before = reachable.plain_state(arm.component)
        arm.run()
        after = reachable.plain_state(arm.component)
    left = {*host_state.mutated(before, after)} & {*study.outcome.host_state}
    return [] if left else hooked


def left_by_warmup(study: Attribution) -> list[str]:
    """Plain Python state, with its value, that entering and leaving `around_warmup` leaves changed or new."""
    with study.backend.active():
        arm = Arm(study.component, study.backend)
        if arm.stage(study.plan.captures[0]) is not None:
            return []
        before = reachable.plain_state(arm.component)
        with arm.component.around_warmup(arm.buffers):
            pass
        after = reachable.plain_state(arm.component)
    return [f"{name} = {value}" for name, value in after.items() if before.get(name) != value]


def schedule(study: Attribution) -> Finding | None:
    """GC309 if an eager arm that went through the earlier steps records other numbers for the same case."""
    step = study.symptom.step or 0
    if step == 0 or study.symptom.kind is Kind.HISTORY:
        return None
    fresh, lived = study.record(study.case), study.record(study.case, after=study.plan.replays[:step])
    if fresh is None or lived is None:
        return None
    found = baked(fresh, lived, ("the first step", f"step {step}"))
    # Another place or extent is no schedule: an allocator of the component's may go by its history, too.
    if not found or found[0].code not in ("GC301", "GC303"):
        return None
    first = found[0]
    study.tried.append(f"the same case recorded at the first step and at step {step}: the records differ")
    code = "GC303" if first.code == "GC303" else "GC309"
    return replace(
        study.symptom.finding,
        code=code,
        message=f"the record depends on how many steps came before: {first.message}",
        where=first.where,
        advice="keep rates, step counts and other schedule state in device tensors that are updated in place",
    ).with_evidence(first.place, f"frozen: {first.got}", f"needed: {first.expected}")
