"""GC3xx: host values, branches and side effects that a graph freezes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from graphcheck.finding import Severity
from graphcheck.lint import operators
from graphcheck.lint.log import Binary, Call, Divided, Event, Index, Log, Loop, Mode, Read, Store, Test
from graphcheck.lint.rules.guards import creates_once
from graphcheck.lint.rules.problem import Problem, problem, quoted
from graphcheck.lint.values import Kind, Value

_MUTATORS = frozenset({"append", "extend", "insert", "add", "update", "appendleft", "setdefault"})
_HOOKS = frozenset(
    {"register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook", "register_backward_hook"}
)


def _origin(value: Value) -> str:
    """Where a varying value comes from, in words."""
    return ", ".join(sorted(source for source in value.sources if source)) or "the host"


def scalar(log: Log) -> Iterator[Problem]:
    """GC301: a number that becomes a launch parameter."""
    for event in log.events:
        if not event.place.captured:
            continue
        if isinstance(event, Binary) and event.result.on_device:
            for value, node in zip((event.left, event.right), _operands(event.node), strict=False):
                if log.changes(value):
                    yield _baked_scalar(event, node, value)
        elif isinstance(event, Call) and _launches(event):
            for word, value, node in _arguments(event):
                if log.changes(value) and not _is_extent(event, word) and not _heuristic(event):
                    yield _baked_scalar(event, node, value)


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
            yield problem(
                "GC302",
                event,
                f"{quoted(node)} is sized by a host value (from {_origin(value)}): replays with longer data are cut or misread",
                advice,
            )


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
    """GC303: a branch on a host value that selects what is recorded."""
    for event in log.events:
        if not isinstance(event, Test) or not event.place.captured or event.how not in ("if", "while", "match"):
            continue
        if log.changes(event.value) and any(event.arms):
            yield problem(
                "GC303",
                event,
                f"'{event.how} {quoted(event.node)}' picks kernels by a host value (from {_origin(event.value)}); replays keep the branch",
                "choose on the device with torch.where, or put the flag into the graph key",
            )


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


def capture_aware(log: Log) -> Iterator[Problem]:
    """GC307: asking for the capture status changes what is computed."""
    for event in log.events:
        if isinstance(event, Divided) and event.place.captured:
            names = event.skipped or event.captured
            side = "only eager execution" if event.skipped else "only the capture"
            subject = f"{names[0]} is computed one way while capturing and another way eagerly"
            if not event.both:
                subject = f"{side} computes {names[0]} here, so graph and eager run different code"
            test = event.node.test if isinstance(event.node, ast.If) else event.node
            yield problem(
                "GC307",
                event,
                subject,
                "use the capture status for assertions only, and compute the same in both",
                Severity.WARNING if event.both else Severity.ERROR,
                node=test,
            )


def side_effect(log: Log) -> Iterator[Problem]:
    """GC308: Python state that the region changes once, at capture."""
    free = log.component is None and log.contract is None
    for event in log.events:
        if not event.place.captured:
            continue
        if isinstance(event, Store) and not event.local and _persists(event.path, event, log):
            if (
                creates_once(event)
                or (event.augmented and event.before.is_tensor)
                or (event.value.is_tensor and event.augmented)
            ):
                continue
            outermost = free and event.place.depth == 0
            host_step = event.augmented and not event.value.on_device
            if (
                host_step
                or (event.value.holds_device_tensor() and not outermost)
                or (event.value.varies and not outermost)
            ):
                yield problem(
                    "GC308",
                    event,
                    f"{event.path} is set by Python, which runs at capture only: replays leave it as it was then",
                    "return it as an output, or write into a static buffer with copy_ or add_",
                )
        elif (
            isinstance(event, Call)
            and event.method in _MUTATORS
            and event.receiver.path.startswith(("self.", "buffers."))
        ) and (
            event.name == f".{event.method}" and not event.receiver.is_tensor and event.receiver.kind is Kind.CONTAINER
        ):
            yield problem(
                "GC308",
                event,
                f"{quoted(event.node)} runs at capture only: replays add nothing to {event.receiver.path}",
                "do it outside the region, after the replay",
            )


def _persists(path: str, event: Store, log: Log) -> bool:
    if "." in path and event.base.kind in (Kind.OBJECT, Kind.BUFFERS):
        return not event.base.fresh
    root = path.partition(".")[0]
    if event.base.kind is Kind.UNKNOWN and not event.base.path and "." not in path:
        return not event.local
    return log.contract is not None and event.place.depth == 0 and "." in path and root in _parameters(log)


def _parameters(log: Log) -> set[str]:
    if log.function is None:
        return set()
    arguments = log.function.node.args
    return {argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}


def optimiser(log: Log) -> Iterator[Problem]:
    """GC309: step counts, learning rates and loss scales on the host."""
    for call in log.calls():
        kind = call.receiver.symbol.rpartition(".")[2]
        if call.method == "step" and kind in operators.SUPPORTS_CAPTURABLE and call.receiver.constant != "capturable":
            yield problem(
                "GC309",
                call,
                f"{quoted(call.node)}: this {kind} keeps step count and bias correction on the host, frozen at capture",
                f"{kind}(..., capturable=True) with the learning rate in a tensor",
            )
        elif kind == "GradScaler" and call.method in ("step", "update", "unscale_"):
            yield problem(
                "GC309",
                call,
                f"{quoted(call.node)} decides on the host whether to step; replays repeat the decision of the capture",
                "call the scaler's step and update outside the region",
            )


def leaked_flag(log: Log) -> Iterator[Problem]:
    """GC310, weakly: an object copied while a flag is set for the capture only."""
    raised: dict[str, Store] = {}
    copied: dict[str, Call] = {}
    for event in log.events:
        if event.place.mode is not Mode.HOST:
            continue
        if isinstance(event, Store) and "." in event.path and not event.augmented:
            if event.value.constant is True:
                raised[event.path] = event
            elif event.value.constant is False and event.path in raised:
                root = event.path.rpartition(".")[0]
                if root in copied:
                    yield problem(
                        "GC310",
                        copied[root],
                        f"{quoted(copied[root].node)} copies {root} while {event.path} is set for the capture; the copy keeps it",
                        "clear the flag on the stored copy as well",
                        Severity.WARNING,
                    )
        elif (
            isinstance(event, Call)
            and event.name in ("copy.copy", "dataclasses.replace")
            and event.arguments
            and any(path.startswith(f"{event.arguments[0].path}.") for path in raised)
        ):
            copied[event.arguments[0].path] = event


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
            and event.path in _parameters(log)
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


def hooks(log: Log) -> Iterator[Problem]:
    """GC313: a hook on a part of a graphed module."""
    graphed = {
        value.path
        for call in log.calls(Mode.HOST)
        if call.method == "make_graphed_callables" and call.arguments
        for value in (call.arguments[0], *(call.arguments[0].items or ()))
        if value.path
    }
    for call in log.calls(Mode.HOST):
        if call.method in _HOOKS and any(call.receiver.path.startswith(f"{path}.") for path in graphed):
            yield problem(
                "GC313",
                call,
                f"{quoted(call.node)}: the graphed module replays as one block, so hooks of its parts never run",
                "hook the module itself, or graph its parts separately",
            )


RULES = {
    scalar: ("GC301",),
    extent: ("GC302",),
    branch: ("GC303",),
    heuristic: ("GC304",),
    pointers: ("GC306",),
    capture_aware: ("GC307",),
    side_effect: ("GC308",),
    optimiser: ("GC309",),
    leaked_flag: ("GC310",),
    incomplete_key: ("GC311",),
    hooks: ("GC313",),
}
