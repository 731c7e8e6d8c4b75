"""GC305, GC306 and GC312: plans, tables of addresses and layouts that replays take over from the capture."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from graphcheck.finding import Severity
from graphcheck.lint.log import Call, Close, Event, Index, Log, Mode
from graphcheck.lint.rules.guards import absent
from graphcheck.lint.rules.problem import Problem, problem, quoted
from graphcheck.lint.rules.shapes import bounds_of, writes

_PLANNERS = ("plan", "prepare", "begin_forward", "prepare_metadata", "init_forward_metadata", "build_metadata")


def planned_once(log: Log) -> Iterator[Problem]:
    """GC305: a host-made plan is not made anew before a replay."""
    flags = {event.path for event in log.stores(Mode.REFRESH) if event.path}
    for write in writes(log):
        for guard in write.event.place.guards:
            once = absent(guard)
            if once.startswith("self.") and once in flags and not guard.value.varies:
                # The test is what is wrong; the planner behind it may serve others that call it every time.
                code, words, advice = "GC305", "is planned", "read the first batch's plan"
                if _holds_addresses(write.event):
                    code, words, advice = "GC306", "gets its addresses", "follow the first batch's addresses"
                yield Problem(
                    code,
                    guard.test,
                    guard.module,
                    write.event.place,
                    f"{write.path} {words} only while {once} is unset, so later replays {advice}",
                    "write it before every replay",
                )
                break
    yield from _planner_left_out(log)


def _holds_addresses(event: Event) -> bool:
    """Whether what is written was computed from ``data_ptr()``, in the line itself or by names of its function."""
    parts = list(ast.walk(event.node))
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    function = event.place.function
    for node in ast.walk(function.node) if function is not None else ():
        if isinstance(node, ast.Assign) and names & {part.id for part in node.targets if isinstance(part, ast.Name)}:
            parts += ast.walk(node.value)
    return any(isinstance(part, ast.Attribute) and part.attr == "data_ptr" for part in parts)


def _planner_left_out(log: Log) -> Iterator[Problem]:
    planned: dict[str, Call] = {}
    again: set[str] = set()
    closed = replayed = looped = False
    used: set[str] = set()
    for event in log.events:
        if isinstance(event, Close):
            closed = True
        elif isinstance(event, Call):
            path = event.receiver.path
            if event.place.mode is Mode.HOST and event.method in _PLANNERS and path:
                if closed:
                    again.add(path)
                else:
                    planned[path] = event
            elif event.place.captured and path:
                used.add(path)
            elif event.place.mode is Mode.HOST and closed and event.method == "replay":
                replayed, looped = True, looped or bool(event.place.loops)
    if not replayed or not looped:
        return
    for path, call in planned.items():
        if path in used and path not in again:
            yield problem(
                "GC305",
                call,
                f"{quoted(call.node)} plans before the capture only; replays of other batches read this batch's plan",
                f"call {path}.{call.method} before every replay",
            )


def other_layout(log: Log) -> Iterator[Problem]:
    """GC312, weakly: the region reads the end of a buffer whose beginning is refreshed."""
    ends: dict[str, Index] = {}
    for event in log.events:
        if isinstance(event, Index) and event.place.captured and event.base.path and event.stored is None:
            lower, upper = bounds_of(event.node)
            if isinstance(lower, ast.UnaryOp) and isinstance(lower.op, ast.USub) and upper is None:
                ends[event.base.path] = event
    for write in writes(log):
        if write.path in ends and write.lower is None and write.upper is not None:
            yield problem(
                "GC312",
                write.event,
                f"{quoted(write.event.node)} fills the front of {write.path}, but the region reads its end (line {getattr(ends[write.path].node, 'lineno', 0)})",
                "let one function lay the buffer out for both",
                Severity.WARNING,
            )


RULES = {
    planned_once: ("GC305", "GC306"),
    other_layout: ("GC312",),
}
