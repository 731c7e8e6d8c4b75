"""GC301 to GC311: host values and branches that a graph freezes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from graphcheck.finding import Severity
from graphcheck.lint import operators
from graphcheck.lint.attributes import PARAMETER
from graphcheck.lint.log import Binary, Call, Event, Index, Log, Loop, Mode, Read, Test
from graphcheck.lint.rules.problem import Problem, problem, quoted
from graphcheck.lint.values import Kind, Value

_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def _origin(value: Value) -> str:
    """Where a varying value comes from, in words."""
    return ", ".join(sorted(source for source in value.sources if source)) or "the host"


def scalar(log: Log) -> Iterator[Problem]:
    """GC301: a number that becomes a launch parameter; GC309 where every step advances that number."""
    steps = _advanced(log)
    for event in log.events:
        if not event.place.captured:
            continue
        if isinstance(event, Binary) and event.result.on_device:
            for value, node in zip((event.left, event.right), _operands(event.node), strict=False):
                if (value.kind is Kind.CONSTANT and value.path in steps) or value.sources & set(steps):
                    name = value.path if value.path in steps else min(value.sources & set(steps))
                    yield problem(
                        "GC309",
                        event,
                        f"{quoted(node)} is a host number that each step advances ({name}, line {_line(steps[name])}); "
                        "replays keep the one of the capture",
                        f"hold {name} in a device tensor and advance it there, in place",
                    )
                elif log.changes(value):
                    yield _outside_key(log, value, _baked_scalar(event, node, value))
        elif isinstance(event, Call) and _launches(event):
            for word, value, node in _arguments(event):
                if log.changes(value) and not _is_extent(event, word) and not _heuristic(event):
                    yield _outside_key(log, value, _baked_scalar(event, node, value))


def _advanced(log: Log) -> dict[str, Event]:
    """Host numbers on objects that a step computes from their last value, with where."""
    return {
        store.path: store
        for store in log.stores(Mode.REGION, Mode.OBSERVE)
        if store.augmented and store.base.kind is Kind.OBJECT and store.value.kind in (Kind.CONSTANT, Kind.VARYING)
    }


def _outside_key(log: Log, value: Value, found: Problem) -> Problem:
    """GC311 in place of the finding where a component has a graph key, and the key leaves out this part of the case."""
    lacking = sorted(value.sources - log.key_sources)
    # What was measured from lengths belongs into no key: a bound over the capacity is the cure.
    if not log.keyed or not lacking or value.made != PARAMETER:
        return found
    return replace(
        found,
        code="GC311",
        message=f"{found.message.partition(' (from ')[0]}, and the graph key leaves out {lacking[0]}: "
        "a graph recorded for another value serves this case",
        advice=f"put {lacking[0]} into key(), or hold it in a buffer that the region reads",
    )


def _baked_scalar(event: Event, node: ast.AST, value: Value) -> Problem:
    return problem(
        "GC301",
        event,
        f"{quoted(node)} is a host number (from {_origin(value)}); the kernel keeps its capture-time value for ever",
        "hold it in a device tensor that fill_ refreshes outside the region",
    )


def extent(log: Log) -> Iterator[Problem]:
    """GC302: a length, width, grid or loop bound that is fixed at capture."""
    advice = "use the capacity and mask by device lengths, or put the bound into the graph key"
    for event in log.events:
        if not event.place.captured:
            continue
        guilty: list[tuple[ast.AST, Value]] = []
        if isinstance(event, Index) and (event.base.on_device or (event.base.kind is Kind.UNKNOWN and event.bounds)):
            guilty = [(event.node, value) for value in (*event.bounds, *_parts(event.index)) if log.changes(value)]
        elif isinstance(event, Loop) and log.changes(event.value) and event.works:
            guilty = [(event.node, event.value)]
        elif isinstance(event, Call) and _launches(event) and not _heuristic(event):
            guilty = [
                (node, value)
                for word, value, node in _arguments(event)
                if log.changes(value) and _is_extent(event, word)
            ]
        for node, value in guilty[:1]:
            found = problem(
                "GC302",
                event,
                f"{quoted(node)} is sized by a host value (from {_origin(value)}): replays with longer data are cut or misread",
                advice,
            )
            yield _outside_key(log, value, found)


def heuristic(log: Log) -> Iterator[Problem]:
    """GC304, weakly: a split count or tactic computed from host lengths."""
    for call in log.calls():
        values = [value for value in (*call.arguments, *call.keywords.values()) if log.changes(value)]
        if values and _heuristic(call):
            yield problem(
                "GC304",
                call,
                f"{quoted(call.node)} chooses a kernel or split count from {_origin(values[0])}; replays keep that choice",
                "derive it from capacity or batch size only, with an upper bound for both",
                Severity.WARNING,
            )


def _heuristic(call: Call) -> bool:
    return (
        call.known is False
        and any(word in call.method.lower() for word in operators.HEURISTIC_WORDS)
        and (not call.name.startswith(("torch.", ".split", ".tensor_split")) and not call.receiver.is_tensor)
    )


def _launches(call: Call) -> bool:
    """Whether a call hands its arguments to a kernel: torch's own, or something that cannot be seen."""
    if call.known:
        return False
    if call.name == "[launch]":
        return True
    if call.name.startswith("torch.") or call.receiver.on_device:
        return call.result.on_device or operators.is_in_place(call.method) or any(v.on_device for v in call.inputs)
    if call.name.startswith(".") and call.receiver.kind in (Kind.CONTAINER, Kind.VARYING, Kind.CONSTANT):
        return False
    if call.name in (
        "max",
        "min",
        "int",
        "float",
        "len",
        "range",
        "isinstance",
        "print",
        "getattr",
        "list",
        "tuple",
        "dict",
        "sum",
    ):
        return False
    return any(value.on_device for value in (*call.arguments, *call.keywords.values())) or (
        call.name.startswith(".") and call.method in operators.TENSOR_METHODS
    )


def _arguments(call: Call) -> Iterator[tuple[str, Value, ast.AST]]:
    """Arguments with their keyword (or position) and source, launch grid included."""
    node = call.node
    if not isinstance(node, ast.Call):
        return
    for number, (argument, value) in enumerate(zip(node.args, call.arguments, strict=False)):
        for part in _parts(value):
            yield str(number), part, argument
    for keyword, value in zip(node.keywords, call.keywords.values(), strict=False):
        for part in _parts(value):
            yield keyword.arg or "", part, keyword.value


def _parts(value: Value) -> tuple[Value, ...]:
    return value.items if value.kind is Kind.CONTAINER and value.items else (value,)


def _is_extent(call: Call, word: str) -> bool:
    if word.isdigit():
        if call.method in ("full", "new_full", "pad"):
            return word == "0" or call.method == "pad"
        return call.method in operators.EXTENT_FUNCTIONS
    return any(part in word.lower() for part in operators.EXTENT_WORDS) or word in ("k", "n", "start", "end")


def _operands(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.Compare):
        return [node.left, node.comparators[0]]
    return [node, node]


def branch(log: Log) -> Iterator[Problem]:
    """GC303: a branch on a host value that selects what is recorded; GC304 where it picks a variant by lengths."""
    for event in log.events:
        if not isinstance(event, Test) or not event.place.captured or event.how not in ("if", "while", "match"):
            continue
        if not log.changes(event.value) or not any(event.arms):
            continue
        if _picks_variant(event):
            yield problem(
                "GC304",
                event,
                f"'{event.how} {quoted(_asked(event))}' picks a variant by {_origin(event.value)}; replays keep the choice of the capture",
                "choose by capacity or batch size only, so that one variant is right for every length",
            )
        else:
            found = problem(
                "GC303",
                event,
                f"'{event.how} {quoted(event.node)}' picks kernels by a host value (from {_origin(event.value)}); replays keep the branch",
                "choose on the device with torch.where, or put the flag into the graph key",
            )
            yield _outside_key(log, event.value, found)


def _asked(event: Test) -> ast.AST:
    return event.node.test if isinstance(event.node, ast.IfExp) else event.node


def _picks_variant(event: Test) -> bool:
    """Whether either side computes, and the test compares a length or names a split count or a tactic."""
    test = _asked(event)
    words = ast.unparse(test).lower()
    if not all(event.arms):
        return False
    if any(word in words for word in operators.HEURISTIC_WORDS):
        return True
    ordered = isinstance(test, ast.Compare) and all(isinstance(op, _ORDERS) for op in test.ops)
    return ordered and any(word in source for source in event.value.sources for word in operators.EXTENT_WORDS)


def pointers(log: Log) -> Iterator[Problem]:
    """GC306: a table of addresses built at capture."""
    for call in log.calls():
        if call.name in operators.CREATES_FROM_DATA and isinstance(call.node, ast.Call) and call.node.args:
            inside = ast.walk(call.node.args[0])
            if any(isinstance(part, ast.Attribute) and part.attr == "data_ptr" for part in inside):
                yield problem(
                    "GC306",
                    call,
                    f"{quoted(call.node)} freezes the addresses of capture time into a table that replays go on using",
                    "build the table once over stable buffers, before the capture, and refresh it with copy_",
                )


def parameters(log: Log) -> set[str]:
    if log.function is None:
        return set()
    arguments = log.function.node.args
    return {argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}


def incomplete_key(log: Log) -> Iterator[Problem]:
    """GC311, weakly: a graph stored under fewer values than its region was recorded with."""
    if log.function is None or log.component is not None:
        return
    used: dict[str, Event] = {}
    for event in log.events:
        if (
            isinstance(event, Read)
            and event.place.captured
            and event.place.depth == 0
            and event.value.kind is Kind.CONSTANT
            and event.path in parameters(log)
        ):
            used.setdefault(event.path, event)
    for event in log.events:
        if isinstance(event, Index) and event.stored is not None and event.stored.kind is Kind.GRAPH:
            node = event.node
            held = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            known = _assigned_from(log.function.node, held)
            for name, reading in used.items():
                if name not in held | known:
                    yield problem(
                        "GC311",
                        event,
                        f"the graph is kept under {quoted(node)}, but its region also depends on {name} (line {_line(reading)})",
                        f"put {name} into the key",
                        Severity.WARNING,
                    )


def _assigned_from(function: ast.AST, names: set[str]) -> set[str]:
    """Names that the values of these names were computed from."""
    found: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id in names for t in node.targets):
            found |= {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}
    return found


def _line(event: Event) -> int:
    return int(getattr(event.node, "lineno", 0))


RULES = {
    scalar: ("GC301", "GC309", "GC311"),
    extent: ("GC302", "GC311"),
    branch: ("GC303", "GC304", "GC311"),
    heuristic: ("GC304",),
    pointers: ("GC306",),
    incomplete_key: ("GC311",),
}
