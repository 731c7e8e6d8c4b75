"""GC6xx: lazy work, warm-up, and what a capture does not do."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from graphcheck.finding import Severity
from graphcheck.lint import operators
from graphcheck.lint.log import Binary, Call, Close, Log, Mode, Open, Store
from graphcheck.lint.rules.guards import creating_guard
from graphcheck.lint.rules.lifetimes import region_inputs, region_outputs
from graphcheck.lint.rules.problem import Problem, problem, quoted
from graphcheck.lint.values import Kind, Value

_CASTS = frozenset({"to", "half", "bfloat16", "float", "double", "type"})


def compiling(log: Log) -> Iterator[Problem]:
    """GC601."""
    for call in log.calls():
        if call.name in operators.COMPILING:
            yield problem(
                "GC601",
                call,
                f"{quoted(call.node)} compiles or loads while capturing, which synchronises and allocates",
                "compile and run it once before the capture",
            )


def made_once(log: Log) -> Iterator[Problem]:
    """GC405, GC406, GC602 and GC603: the region makes something only while it is missing."""
    cold = never_warmed(log)
    for event in log.stores():
        if event.augmented or event.local or event.value.kind is Kind.CONSTANT:
            continue
        guard = creating_guard(event)
        if guard is None or (not event.path.startswith("self.") and "." not in event.path):
            continue
        value, name = event.value, event.path.removesuffix("[]")
        if value.kind is Kind.UNKNOWN and not _computes(event, log):
            continue
        computed = value.on_device and not _made_from_nothing(value)
        if computed and not cold and _casts(event):
            yield problem(
                "GC406",
                event,
                f"{name} is a cast that only the first call makes: the graph reads this copy, and later weight updates miss it",
                "cast inside the region, or cast anew into the same memory after every update",
            )
        elif (computed and not cold) or value.kind is Kind.UNKNOWN:
            yield problem(
                "GC602",
                event,
                f"{name} is computed only while it is missing: warm-up computes it, and the graph never does again",
                "compute it in every step, or outside before every replay",
            )
        elif cold and value.made in operators.INITIALISED:
            yield problem(
                "GC603",
                event,
                f"{name} is initialised by the first call, which is the capture: every replay resets it",
                "initialise it before the capture",
            )
        elif value.holds_device_tensor() or value.kind is Kind.OBJECT:
            yield problem(
                "GC405",
                event,
                f"{name} is made by the first call; made while capturing, it lies in the graph's pool and is overwritten",
                "make it before the capture (refuse_while_capturing guards the place)",
            )


def _casts(event: Store) -> bool:
    """Whether what is stored is nothing but another format of a named tensor."""
    node = event.node
    made = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
    if not isinstance(made, ast.Call) or not isinstance(made.func, ast.Attribute) or made.func.attr not in _CASTS:
        return False
    source: ast.expr = made.func.value
    while isinstance(source, ast.Attribute):
        source = source.value
    return isinstance(source, ast.Name)


def _made_from_nothing(value: Value) -> bool:
    return value.made in operators.UNWRITTEN or value.made in operators.INITIALISED


def _computes(event: Store, log: Log) -> bool:
    """Whether an unknown value was computed from the region's device tensors."""
    node = event.node
    called = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
    for call in log.calls():
        if call.node is called:
            return any(value.holds_device_tensor() for value in (*call.arguments, *call.keywords.values()))
    return False


def never_warmed(log: Log) -> bool:
    """Whether the capture is known to be the first call."""
    if log.component is not None:
        held = log.component.attribute("warmup")
        return held is not None and isinstance(held[1], ast.Constant) and held[1].value == 0
    return False


def drift(log: Log) -> Iterator[Problem]:
    """GC604: warm-up runs advance state that nobody puts back."""
    warmed = _warmed_paths(log)
    written: set[str] = set()
    for event in log.events:
        if not event.place.captured:
            continue
        path, value = "", Value()
        if isinstance(event, Call) and not event.known and not event.name.startswith(("torch.", ".")):
            # Code that cannot be seen may write what it is given.
            written.update(argument.path for argument in event.arguments)
        if isinstance(event, Call) and event.name.startswith("."):
            if event.method in operators.WHOLE_WRITES and event.receiver.path and not event.receiver.partial:
                written.add(event.receiver.path)
            elif event.method in operators.ACCUMULATES:
                path, value = event.receiver.path, event.receiver
        elif isinstance(event, Store) and event.augmented and event.before.is_tensor:
            path, value = event.before.path or event.path, event.before
        if not path or not value.on_device or value.fresh or path in written:
            continue
        if log.component is not None:
            if not _drifts(log, path):
                continue
        elif path not in warmed:
            continue
        written.add(path)
        yield problem(
            "GC604",
            event,
            f"{path} is advanced in place, so every warm-up run advances it too and the first replay starts too far",
            f"save {path} before warm-up and copy it back after the capture",
        )


def _drifts(log: Log, path: str) -> bool:
    """Whether a component leaves the state at ``path`` advanced after warm-up."""
    owner = log.component
    if owner is None:
        return False
    if path.startswith("self."):
        return True
    around = owner.method("around_warmup")
    if around is not None and around.owner is not None and around.owner.name != "Component":
        return False
    held = owner.attribute("restores")
    node = held[1] if held is not None else None
    names = [part.value for part in node.elts if isinstance(part, ast.Constant)] if isinstance(node, ast.Tuple) else []
    return path.removeprefix("buffers.") in names


def _warmed_paths(log: Log) -> set[str]:
    """Device tensors that something run before the region advances, and that nothing restores before it."""
    advanced: set[str] = set()
    for event in log.events:
        if isinstance(event, Open):
            break
        if event.place.mode is not Mode.HOST:
            continue
        if isinstance(event, Call) and event.name.startswith("."):
            if event.method in operators.ACCUMULATES:
                advanced.add(event.receiver.path)
            elif event.method in operators.WHOLE_WRITES:
                advanced.discard(event.receiver.path)
        elif isinstance(event, Store) and event.augmented and event.before.is_tensor:
            advanced.add(event.before.path or event.path)
    return advanced - _restored(log)


def _restored(log: Log) -> set[str]:
    """Tensors that are written whole between the capture and the first replay."""
    found: set[str] = set()
    closed = False
    for event in log.events:
        closed = closed or isinstance(event, Close)
        if closed and isinstance(event, Call):
            if event.method == "replay":
                break
            if event.method in operators.WHOLE_WRITES:
                found.add(event.receiver.path)
    return found


def read_too_early(log: Log) -> Iterator[Problem]:
    """GC607: an output is used between the capture and the first replay."""
    outputs: set[str] = set()
    closed = False
    captured = region_outputs(log) - set(region_inputs(log))
    for event in log.events:
        if isinstance(event, Close) and not event.place.calls:
            closed, outputs = True, set(captured)
            continue
        if not closed or event.place.mode is not Mode.HOST or event.place.calls:
            continue
        if isinstance(event, Call) and event.method in ("replay", "launch"):
            return
        used: Value | None = None
        if isinstance(event, Call):
            operator = event.name.startswith("torch.") and not event.name.startswith(("torch.utils.", "torch._"))
            direct = operator or event.name in ("print", "int", "float", "bool")
            if (
                event.receiver.is_tensor
                and event.method not in operators.HOST_METHODS
                and event.method not in operators.VIEWS
            ):
                used = event.receiver
            elif direct:
                used = next((value for value in event.arguments if value.path in outputs), None)
        elif isinstance(event, Binary):
            used = event.left if event.left.path in outputs else event.right
        elif isinstance(event, Store) and event.path in outputs:
            outputs.discard(event.path)
        if used is not None and used.path in outputs and used.path and used.kind in (Kind.DEVICE, Kind.UNKNOWN):
            yield problem(
                "GC607",
                event,
                f"{quoted(event.node)} uses {used.path} before any replay: capturing computed nothing, it holds old bytes",
                "replay once before reading the outputs",
            )
            return


def swallowed(log: Log) -> Iterator[Problem]:
    """GC608: a failed capture is swallowed."""
    regions = {id(event.node): event for event in log.events if isinstance(event, Open)}
    body = log.function.node if log.function is not None else log.module.source.tree
    if body is None or not regions or log.component is not None or log.contract is not None:
        return
    for node in ast.walk(body):
        if not isinstance(node, ast.Try):
            continue
        opened = next((regions[id(part)] for item in node.body for part in ast.walk(item) if id(part) in regions), None)
        if opened is None or opened.how == "make_graphed_callables":
            continue
        for handler in node.handlers:
            caught = handler.type
            names = (
                {part.id for part in ast.walk(caught) if isinstance(part, ast.Name)}
                if caught is not None
                else {"Exception"}
            )
            broad = bool(names & {"Exception", "BaseException", "RuntimeError"})
            if broad and not any(isinstance(part, ast.Raise) for item in handler.body for part in ast.walk(item)):
                silent = all(_says_nothing(item) for item in handler.body)
                yield problem(
                    "GC608",
                    opened,
                    f"'except {quoted(caught) if caught is not None else ''}' swallows a failed capture: the code goes on eagerly, or with an older graph",
                    "let it raise, or count the fallback and assert in tests that replays happened",
                    Severity.ERROR if silent else Severity.WARNING,
                    node=handler,
                )


def _says_nothing(node: ast.stmt) -> bool:
    if isinstance(node, (ast.Pass, ast.Continue)):
        return True
    return isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Constant))


RULES = {
    compiling: ("GC601",),
    made_once: ("GC405", "GC406", "GC602", "GC603"),
    drift: ("GC604",),
    read_too_early: ("GC607",),
    swallowed: ("GC608",),
}
