"""GC5xx: outputs kept too long, graphs that share a pool, allocation inside the region."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from graphcheck.finding import Severity
from graphcheck.lint import operators
from graphcheck.lint.log import Call, Event, Log, Mode, Open, Read, Return, Store
from graphcheck.lint.package import ClassInfo
from graphcheck.lint.rules.lifetimes import region_outputs
from graphcheck.lint.rules.problem import Problem, problem, quoted
from graphcheck.lint.values import Kind, Value


def kept_output(log: Log) -> Iterator[Problem]:
    """GC501 and GC502: an output kept across replays."""
    outputs = region_outputs(log)
    for event in log.events:
        mode = event.place.mode
        if mode is Mode.OBSERVE:
            kept: Value | None = None
            if isinstance(event, Call) and event.method in ("append", "extend", "add", "insert") and event.arguments:
                kept = event.arguments[-1] if event.receiver.path.startswith("self.") else None
            elif isinstance(event, Store) and event.path.startswith("self."):
                kept = event.value
            if kept is not None and kept.output:
                several = bool(log.key_sources)
                yield problem(
                    "GC502" if several else "GC501",
                    event,
                    f"{quoted(event.node)} keeps an output that "
                    + (
                        "the next replay of any graph in the pool overwrites"
                        if several
                        else "the next replay overwrites"
                    ),
                    "keep output.clone()",
                )
        elif mode in (Mode.HOST, Mode.REFRESH) and not event.place.captured:
            if isinstance(event, Call) and event.method == "append" and event.arguments and _replayed_in(log, event):
                if event.arguments[0].path in outputs and event.arguments[0].path:
                    yield problem(
                        "GC501",
                        event,
                        f"{quoted(event.node)} keeps {event.arguments[0].path}, which the next replay overwrites",
                        f"append {event.arguments[0].path}.clone()",
                    )
            elif (
                isinstance(event, Return)
                and event.value.path in outputs
                and event.value.path.startswith("self.")
                and _replayed_in(log, event)
                and event.depth == 0
            ):
                yield problem(
                    "GC501",
                    event,
                    f"{event.value.path} is handed out as it is, and the next replay overwrites what the caller holds",
                    f"return {event.value.path}.clone(), or say that callers must copy",
                    Severity.WARNING,
                )


def _replayed_in(log: Log, event: Event) -> bool:
    """Whether the function of an event replays."""
    return any(
        isinstance(other, Call) and other.method == "replay" and other.place.function is event.place.function
        for other in log.events
    )


def shared_pool(log: Log) -> Iterator[Problem]:
    """GC502, weakly: an output is read after another graph of its pool ran."""
    owners: dict[str, str] = {}
    graphs: dict[int, str] = {}
    shared: set[str] = set()
    for event in log.events:
        if isinstance(event, Open):
            graphs[event.number] = event.graph.path
            if "pool" in event.keywords:
                shared.add(event.graph.path)
        elif (
            isinstance(event, Store)
            and event.place.captured
            and event.place.depth == 0
            and event.local
            and event.value.kind in (Kind.DEVICE, Kind.UNKNOWN)
        ):
            owners[event.path] = graphs.get(event.place.region, "")
    if not shared or len(set(graphs.values())) < 2:
        return
    stale: dict[str, str] = {}
    for event in log.events:
        if event.place.mode is not Mode.HOST:
            continue
        if isinstance(event, Call) and event.method == "replay" and event.receiver.path:
            for path, owner in owners.items():
                if owner == event.receiver.path:
                    stale.pop(path, None)
                else:
                    stale[path] = event.receiver.path
        elif isinstance(event, Read) and event.path in stale and _live_before(log, event, owners[event.path]):
            yield problem(
                "GC502",
                event,
                f"{event.path} is read after {stale.pop(event.path)} ran in the same pool, which may have overwritten it",
                f"{event.path}.clone() right after its own replay, or a pool of its own",
                Severity.WARNING,
            )


def _live_before(log: Log, reading: Event, graph: str) -> bool:
    for event in log.events:
        if event is reading:
            return False
        if isinstance(event, Call) and event.method == "replay" and event.receiver.path == graph:
            return True
    return False


def concurrent(log: Log) -> Iterator[Problem]:
    """GC503, weakly: replays handed to threads."""
    for call in log.calls(Mode.HOST, Mode.REFRESH):
        given = call.keywords.get("target") if call.method == "Thread" else None
        if call.method == "submit" and call.arguments:
            given = call.arguments[0]
        if given is not None and given.symbol == ".replay":
            yield problem(
                "GC503",
                call,
                f"{quoted(call.node)} replays on another thread; graphs that share a pool, or one graph twice, then race",
                "replay from one thread, or give each graph a pool of its own",
                Severity.WARNING,
            )


def allocates(log: Log) -> Iterator[Problem]:
    """GC505: a region that is declared allocation-free allocates."""
    owner = log.component
    declared: ast.AST | None = None
    holder: ClassInfo | None = None
    if owner is not None:
        held = owner.attribute("allocation")
        if held is None or not isinstance(held[1], ast.Constant) or held[1].value != "none":
            return
        holder, declared = held[0], held[0].attribute_nodes["allocation"]
    elif log.contract is None or "workspace" not in log.contract:
        return
    for call in log.calls():
        fresh = call.result.on_device and call.result.fresh and bool(call.result.made) and "out" not in call.keywords
        if call.known or not fresh or call.result.path or operators.is_in_place(call.method):
            continue
        if call.method in operators.VIEWS or (call.receiver.is_tensor and call.result is call.receiver):
            continue
        inside = owner is None or call.place.owner is owner
        words = "the class declares allocation = 'none'" if owner is not None else "the contract names a workspace"
        message = f"{quoted(call.node)} allocates inside the region, although {words}"
        advice = "write into a buffer made before the capture (out=, in-place operations)"
        if inside or declared is None or holder is None:
            yield problem("GC505", call, message, advice)
        else:
            # The line belongs to code that promises nothing; the promise is what is wrong.
            yield Problem("GC505", declared, holder.module, call.place, message, advice)
            return


RULES = {
    kept_output: ("GC501", "GC502"),
    shared_pool: ("GC502",),
    concurrent: ("GC503",),
    allocates: ("GC505",),
}
