"""GC406, GC602 and GC603: device work behind a flag that the first call raises."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from graphcheck.lint import operators
from graphcheck.lint.log import Call, Guard, Log, Mode, Store
from graphcheck.lint.rules.guards import absent
from graphcheck.lint.rules.problem import Problem
from graphcheck.lint.rules.shapes import writes
from graphcheck.lint.rules.warmup import never_warmed


def first_call(log: Log) -> Iterator[Problem]:
    """One finding for each flag that the region raises and that is down when the first call comes."""
    cold = never_warmed(log)
    refreshed = {write.path for write in writes(log)}
    for store in log.stores():
        guard = next((guard for guard in store.place.guards if absent(guard) == store.path), None)
        if guard is None or store.value.constant is not True or not store.path.startswith("self."):
            continue
        if not _down(log, store.path) or any(
            other.path == store.path and other.value.constant is False for other in log.stores()
        ):
            continue
        for call in log.calls():
            if any(held is guard for held in call.place.guards):
                found = _cleared(log, call, guard) if cold else _consumed(call, guard, refreshed, store.path)
                if found is not None:
                    yield found
                    break


def _cleared(log: Log, call: Call, guard: Guard) -> Problem | None:
    """GC603: state that the region advances is initialised by the first call, which is the capture."""
    path = call.receiver.path
    if call.method not in ("zero_", "fill_") or not path or not call.receiver.on_device:
        return None
    if not any(other.method in operators.ACCUMULATES and other.receiver.path == path for other in log.calls()):
        return None
    return Problem(
        "GC603",
        call.node,
        call.place.module,
        call.place,
        f"{path} is initialised by the first call ({ast.unparse(guard.test)}), which is the capture: every replay resets it",
        "initialise it before the capture, and raise the flag there",
    )


def _consumed(call: Call, guard: Guard, refreshed: set[str], flag: str) -> Problem | None:
    """GC602, or GC406 for a cast: what depends on refreshed buffers is computed by the warm-up only."""
    into = call.keywords.get("out")
    target = into.path if into is not None else call.receiver.path if operators.is_in_place(call.method) else ""
    given = [value for value in call.arguments if value.on_device and value.path in refreshed]
    if not target or not given or (into is None and not call.receiver.on_device):
        return None
    if call.method == "copy_":
        return Problem(
            "GC406",
            guard.test,
            guard.module,
            call.place,
            f"{target} is a copy of {given[0].path} that only the first call makes: the graph reads it, and later updates miss it",
            "make the copy inside the region, or after every update",
        )
    return Problem(
        "GC602",
        guard.test,
        guard.module,
        call.place,
        f"{target} is computed from {given[0].path} only while {flag} is unset: warm-up computes it, the graph never does",
        "compute it in every step, or outside before every replay",
    )


def _down(log: Log, path: str) -> bool:
    """Whether a flag is known to be down when the first call comes."""
    known: Store | None = None
    for store in log.stores(Mode.PREPARE, Mode.REFRESH):
        if store.path == path:
            known = store
    if known is not None:
        return known.value.constant is False
    held = log.owner.attribute(path.removeprefix("self.")) if log.owner is not None else None
    return held is not None and isinstance(held[1], ast.Constant) and held[1].value is False


RULES = {
    first_call: ("GC406", "GC602", "GC603"),
}
