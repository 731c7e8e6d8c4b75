"""GC407 and GC408: pinned host memory that a captured copy reads."""

from __future__ import annotations

from collections.abc import Iterator

from graphcheck.lint import operators
from graphcheck.lint.log import Call, Index, Log, Mode, Store
from graphcheck.lint.rules.guards import creates_once
from graphcheck.lint.rules.lifetimes import recapturing, region_inputs
from graphcheck.lint.rules.problem import Problem, problem, quoted
from graphcheck.lint.values import Kind, Value

_BLOCKING = frozenset({"item", "tolist", "cpu", "numpy", "synchronize"})


def overwritten_early(log: Log) -> Iterator[Problem]:
    """GC408: pinned staging is refilled in a loop while the last replay's copy may still wait."""
    read = {path for path, value in region_inputs(log).items() if value.pinned}
    loop = [event for event in log.events if event.place.mode is Mode.HOST and event.place.loops]
    replays = any(isinstance(event, Call) and event.method == "replay" for event in loop)
    waits = any(
        isinstance(event, Call) and event.method in ("synchronize", "wait", "query", "item", "cpu", "tolist")
        for event in loop
    )
    if not replays or waits:
        return
    for event in loop:
        path = ""
        if isinstance(event, Call) and operators.is_in_place(event.method):
            path = event.receiver.path
        elif isinstance(event, Index) and event.stored is not None:
            path = event.base.path
        if path in read:
            yield problem(
                "GC408",
                event,
                f"{path} is refilled while the copy of the replay before may still read it",
                "wait for an event of the replay, or alternate between two pinned buffers",
            )
            return


def captured_sources(log: Log) -> dict[str, Call]:
    """Pinned tensors on objects that copies inside the region read later, with the copy."""
    found: dict[str, Call] = {}
    for call in log.calls():
        waits = call.keywords.get("non_blocking")
        if waits is None or waits.constant is False:
            continue
        source = call.arguments[0] if call.method == "copy_" and call.arguments else call.receiver
        if call.method in ("copy_", "to", "cuda") and source.pinned and "." in source.path:
            found.setdefault(source.path, call)
    return found


def dropped_source(log: Log) -> Iterator[Problem]:
    """GC407: the pinned source of a captured copy is replaced, so that nothing keeps its memory."""
    sources = {path.removesuffix("[]"): call for path, call in captured_sources(log).items()}
    renewing = recapturing(log)
    prepared = {store.path for store in log.stores(Mode.PREPARE)}
    copied = False
    for event in log.events:
        copied = copied or any(event is call for call in sources.values())
        if not isinstance(event, Store) or event.path not in sources or event.augmented or event.value.path:
            continue
        if not event.path.startswith("self.") or creates_once(event):
            continue
        if log.component is None and event.path not in prepared:
            # Nothing else gives it a value, so this method may run before the capture.
            continue
        mode = event.place.mode
        later = mode in (Mode.REFRESH, Mode.OBSERVE) and id(event.place.function) not in renewing
        if later or (mode is Mode.REGION and copied):
            copy = sources[event.path].node
            yield problem(
                "GC407",
                event,
                f"{event.path} drops the pinned memory that {quoted(copy)} (line {getattr(copy, 'lineno', 0)}) "
                "recorded; replays read what lies there by then",
                "keep one pinned buffer with the graph, and copy_ new content into it",
            )


def refilled_early(log: Log) -> Iterator[Problem]:
    """GC408: a component's staging refills pinned memory, and nothing waits for the replay before."""
    # Of several buffers in turn, which one is filled is out of sight.
    sources = {path for path in captured_sources(log) if not path.endswith("[]")}
    if log.component is None or not sources or any(call.method in _BLOCKING for call in log.calls(Mode.OBSERVE)):
        return
    recorded = {call.receiver.path for call in log.calls(Mode.PREPARE, Mode.REFRESH, Mode.OBSERVE) if _records(call)}
    for event in log.events:
        if event.place.mode is not Mode.REFRESH:
            continue
        path = ""
        if isinstance(event, Call):
            if operators.is_in_place(event.method):
                path = event.receiver.path
            if path not in sources and _may_wait(event, recorded):
                return
        elif isinstance(event, Index) and event.stored is not None:
            path = event.base.path
        if path in sources:
            yield problem(
                "GC408",
                event,
                f"{path} is refilled while the copy of the replay before may still read it",
                "wait for an event recorded after each replay, or alternate between two pinned buffers",
            )
            return


def _records(call: Call) -> bool:
    return call.name == ".record"


def _may_wait(call: Call, recorded: set[str]) -> bool:
    """Whether the host may wait in a call until the replay before is done."""
    if call.method in ("synchronize", "wait", "query"):
        # An event that nothing records outside the region is complete at once.
        return not call.receiver.path.startswith("self.") or call.receiver.path in recorded
    if call.method in _BLOCKING:
        return True
    if call.method == "copy_":
        first = call.arguments[0] if call.arguments else Value()
        return call.receiver.kind is not Kind.HOST and not first.on_device and "non_blocking" not in call.keywords
    unseen = not call.known and not call.name.startswith("torch.") and not operators.is_in_place(call.method)
    return unseen and any(value.kind not in (Kind.CONSTANT, Kind.VARYING) for value in call.arguments)


RULES = {
    dropped_source: ("GC407",),
    refilled_early: ("GC408",),
    overwritten_early: ("GC408",),
}
