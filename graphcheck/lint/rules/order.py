"""GC206 and GC503: what orders staging, replays and readers on different streams."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from graphcheck.lint import operators
from graphcheck.lint.log import Call, Close, Enter, Event, Guard, Leave, Log, Mode
from graphcheck.lint.rules.problem import Problem, problem, quoted
from graphcheck.lint.rules.shapes import targets
from graphcheck.lint.values import Kind


def _line(event: Event) -> int:
    return event.node.lineno if isinstance(event.node, ast.expr) else 0


def other_stream(log: Log) -> Iterator[Problem]:
    """GC206: a static buffer is refreshed on one stream, the replay launched on another."""
    inputs = log.read_paths()
    streams: list[str] = []
    pending: tuple[Call, str] | None = None
    after = False
    for event in log.events:
        after = after or isinstance(event, Close)
        if event.place.mode not in (Mode.HOST, Mode.REFRESH):
            continue
        if isinstance(event, (Enter, Leave)) and event.name in operators.STREAM_CONTEXTS:
            if isinstance(event, Enter):
                streams.append(event.value.path)
            elif streams:
                streams.pop()
        elif isinstance(event, Call):
            current = streams[-1] if streams else ""
            if event.method in ("wait_stream", "wait_event", "synchronize", "wait"):
                pending = None
            elif event.method in operators.WHOLE_WRITES and event.receiver.path in inputs and after:
                pending = (event, current)
            elif event.method == "replay" and pending is not None and pending[1] != current:
                yield problem(
                    "GC206",
                    event,
                    f"{pending[0].receiver.path} is written on another stream (line {_line(pending[0])}) and nothing orders the replay behind it",
                    "copy, replay and read on one stream, or wait_stream in between",
                )
                pending = None


def staged_elsewhere(log: Log) -> Iterator[Problem]:
    """GC206: a component's staging writes on a stream of its own, and the replay's stream does not wait for it."""
    if log.component is None:
        return
    inputs = log.read_paths()
    streams: list[str] = []
    pending: dict[str, tuple[Event, str]] = {}
    for event in log.events:
        if event.place.mode not in (Mode.REFRESH, Mode.REGION):
            continue
        if isinstance(event, (Enter, Leave)) and event.name in operators.STREAM_CONTEXTS:
            if isinstance(event, Enter):
                streams.append(event.value.path if event.value.kind is Kind.STREAM else "")
            elif streams:
                streams.pop()
        elif isinstance(event, Call) and event.method == "wait_stream" and event.arguments:
            pending.pop(event.arguments[0].path, None)
            pending = pending if event.arguments[0].path else {}
        elif isinstance(event, Call) and event.method in ("wait_event", "wait", "synchronize"):
            pending = {}
        elif event.place.mode is Mode.REFRESH and streams and streams[-1] not in ("", "<current>"):
            for path, _ in targets(event):
                if path in inputs:
                    pending.setdefault(streams[-1], (event, path))
    for stream, (event, path) in pending.items():
        yield problem(
            "GC206",
            event,
            f"{path} is written on stream {stream}, and the replay's stream does not wait for it: a replay may read the old bytes",
            f"torch.cuda.current_stream().wait_stream({stream}) at the end of staging",
        )


def several_lanes(log: Log) -> Iterator[Problem]:
    """GC503: graphs of one pool are replayed on streams that do not wait for each other."""
    if log.component is None or not log.key_sources:
        return
    waiting: set[str] = set()
    for call in log.calls(Mode.REFRESH):
        given = call.arguments[0] if call.arguments else None
        if call.method in ("wait_stream", "wait_event") and not any(_never(guard) for guard in call.place.guards):
            waiting.add(call.receiver.path)
        elif call.name == "torch.cuda.set_stream" and given is not None and given.path not in waiting:
            if given.kind is not Kind.STREAM or not given.path.endswith("[]"):
                # No choice among streams: on one stream the replays are in order.
                continue
            yield problem(
                "GC503",
                call,
                f"{quoted(call.node)} gives each graph a stream of {given.path.removesuffix('[]')}: replays of one pool then overlap",
                "let the chosen stream wait_stream() the one before, or give each graph a pool of its own",
            )


def _never(guard: Guard) -> bool:
    """Whether a test is known not to hold."""
    return guard.value.constant is (not guard.positive)


RULES = {
    staged_elsewhere: ("GC206",),
    several_lanes: ("GC503",),
    other_stream: ("GC206",),
}
