"""GC2xx: side streams, events, and work that leaves the capture."""

from __future__ import annotations

from collections.abc import Iterator

from graphcheck.lint import operators
from graphcheck.lint.log import Call, Close, Enter, Event, Leave, Log, Mode, Open, Return, Store
from graphcheck.lint.rules.problem import Problem, problem, quoted
from graphcheck.lint.values import Kind, Value

CURRENT = "<current>"
LEGACY = "<default>"


class _Branches:
    """Streams of one region: which were forked from the capturing one, and which came back."""

    def __init__(self, origin: set[str]) -> None:
        self.origin = origin | {CURRENT}
        self.forked: dict[str, Event] = {}
        self.joined: set[str] = set()
        self.unforked: dict[str, Event] = {}
        self.recorded: dict[str, str] = {}
        self.found: list[Problem] = []

    def name(self, value: Value) -> str:
        return value.path

    def wait(self, event: Call, waiting: str, awaited: str, words: str) -> None:
        """``waiting`` goes on when ``awaited`` has come that far."""
        if awaited in self.origin or awaited in self.forked:
            if waiting not in self.origin:
                self.forked.setdefault(waiting, event)
                self.unforked.pop(waiting, None)
                self.joined.discard(waiting)
            else:
                self.joined.add(awaited)
        elif waiting in self.origin and awaited in self.unforked:
            first = self.unforked.pop(awaited)
            self.found.append(
                problem(
                    "GC201",
                    first,
                    f"work goes to stream {awaited}, which never waited for the capturing stream; the later wait fails",
                    f"fork first: {awaited}.wait_stream(torch.cuda.current_stream())",
                )
            )
        elif waiting in self.origin and awaited:
            self.found.append(
                problem(
                    "GC203",
                    event,
                    f"{quoted(event.node)} waits for {words} from before the capture, which is absent when a replay runs",
                    "wait before the capture begins, or use an external event",
                )
            )


def branches(log: Log) -> Iterator[Problem]:
    """GC201 to GC204: the fork and join rules, in the order of execution."""
    state: _Branches | None = None
    depth = 0
    streams: list[str] = []
    for event in log.events:
        if isinstance(event, (Enter, Leave)) and event.name in operators.STREAM_CONTEXTS and state is None:
            if isinstance(event, Enter):
                streams.append(event.value.path)
            elif streams:
                streams.pop()
        if isinstance(event, Open):
            given = event.keywords.get("stream")
            state = _Branches({given.path} if given is not None and given.path else set(streams[-1:]))
            if event.how in operators.BEGINS and event.graph.path:
                state.origin.add(event.graph.path)
            depth = 0
        elif isinstance(event, Close) and state is not None:
            yield from _ended(state, event)
            yield from state.found
            state = None
        elif state is not None and event.place.captured:
            depth += isinstance(event, Enter) - isinstance(event, Leave)
            _step(state, event)


def _step(state: _Branches, event: Event) -> None:
    if isinstance(event, Enter) and event.name in operators.STREAM_CONTEXTS:
        path = event.value.path
        if path == LEGACY:
            return
        if path and path not in state.origin and path not in state.forked and event.value.kind is Kind.STREAM:
            state.unforked.setdefault(path, event)
    elif isinstance(event, Return) and event.depth == 0 and event.place.depth == 0:
        left = [path for path in state.forked if path not in state.joined]
        if left and event.place.guards:
            state.found.append(
                problem(
                    "GC202",
                    event,
                    f"this return leaves the region while stream {left[0]} was not joined; the capture fails there",
                    f"torch.cuda.current_stream().wait_stream({left[0]}) before every return",
                )
            )
    elif isinstance(event, Call) and event.receiver.kind in (Kind.STREAM, Kind.EVENT, Kind.UNKNOWN):
        own, first = event.receiver.path, event.arguments[0].path if event.arguments else ""
        if LEGACY in (own, first):
            return
        if event.method == "wait_stream" and event.arguments:
            state.wait(event, own, first, f"stream {first}")
        elif event.method == "wait_event" and event.arguments and event.arguments[0].constant != "external":
            awaited = state.recorded.get(first, "")
            if awaited or first:
                state.wait(event, own, awaited or first, f"event {first}")
        elif event.name == ".wait" and event.receiver.kind is Kind.EVENT and event.receiver.constant != "external":
            awaited = state.recorded.get(own, "")
            if awaited or own:
                state.wait(event, first or CURRENT, awaited or own, f"event {own}")
        elif event.name == ".record" and event.receiver.kind is Kind.EVENT and own:
            state.recorded[own] = first or CURRENT
        elif event.method == "record_event" and first:
            state.recorded[first] = own
    elif isinstance(event, Store) and event.value.kind is Kind.EVENT and event.local:
        state.recorded.setdefault(event.path, CURRENT)


def _ended(state: _Branches, close: Close) -> Iterator[Problem]:
    for path, event in state.unforked.items():
        yield problem(
            "GC204",
            event,
            f"work goes to stream {path}, which never waited for the capturing stream: the graph lacks it, replays skip it",
            f"fork and join: {path}.wait_stream(current) before, current.wait_stream({path}) after",
        )
    for path, event in state.forked.items():
        if path not in state.joined and path not in state.origin:
            yield problem(
                "GC202",
                event,
                f"stream {path} is forked from the capturing stream and never joined, so the capture cannot end",
                f"torch.cuda.current_stream().wait_stream({path}) before the region ends",
            )


def legacy_stream(log: Log) -> Iterator[Problem]:
    """GC111: the region forks onto the legacy default stream, or waits for it."""
    for event in log.events:
        if not event.place.captured:
            continue
        entered = isinstance(event, Enter) and event.name in operators.STREAM_CONTEXTS and event.value.path == LEGACY
        waits = isinstance(event, Call) and event.method in ("wait_stream", "wait_event")
        if entered or (waits and isinstance(event, Call) and LEGACY in {value.path for value in event.inputs}):
            yield problem(
                "GC111",
                event,
                f"{quoted(event.node)} brings the legacy default stream into the capture, which CUDA refuses there",
                "work on a torch.cuda.Stream() of your own, forked from the capturing stream and joined to it",
            )
            return


def other_library(log: Log) -> Iterator[Problem]:
    """GC204: launches that another library puts on a stream of its own, and another device made current."""
    opened = next((event for event in log.events if isinstance(event, Open)), None)
    if opened is None or opened.how in ("begin_capture", "begin_building"):
        return
    for event in log.events:
        if not event.place.captured:
            continue
        bound = any(context.startswith("cupy.cuda.") for context in event.place.contexts)
        if isinstance(event, Call) and event.name.startswith("cupy.") and not bound:
            if not event.name.startswith("cupy.cuda.") and any(v.holds_device_tensor() for v in event.inputs):
                yield problem(
                    "GC204",
                    event,
                    f"{quoted(event.node)} launches on CuPy's own stream: it runs once, and the graph lacks it",
                    "run it under cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)",
                )
        elif isinstance(event, Enter) and event.name == "torch.cuda.device" and isinstance(event.value.constant, int):
            yield problem(
                "GC204",
                event,
                f"device {event.value.constant} is made current inside the region; launches there are not captured",
                "capture each device's work in a graph of its own",
            )


def captured_event(log: Log) -> Iterator[Problem]:
    """GC205: an event recorded inside the region, used outside."""
    recorded: dict[str, Event] = {}
    for event in log.events:
        if not isinstance(event, Call):
            continue
        if event.place.captured and event.name == ".record" and event.receiver.kind is Kind.EVENT:
            if event.receiver.constant != "external" and event.receiver.path:
                recorded[event.receiver.path] = event
        elif event.method in ("record", "record_event"):
            # Recorded anew outside, it is an ordinary event again.
            for value in event.inputs:
                recorded.pop(value.path, None)
        elif event.place.mode in (Mode.HOST, Mode.OBSERVE) and event.method in (
            "elapsed_time",
            "synchronize",
            "query",
            "wait",
            "wait_event",
        ):
            used = [value.path for value in event.inputs if value.path in recorded]
            if not used:
                continue
            yield problem(
                "GC205",
                event,
                f"event {used[0]} was recorded inside the region and is an edge of the graph; {quoted(event.node)} means nothing",
                "make it torch.cuda.Event(external=True) and keep it with the graph",
            )


RULES = {
    branches: ("GC201", "GC202", "GC203", "GC204"),
    legacy_stream: ("GC111",),
    other_library: ("GC204",),
    captured_event: ("GC205",),
}
