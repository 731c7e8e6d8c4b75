"""GC7xx: how much of a buffer is refreshed before a replay, and what padding holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from graphcheck.lint import operators
from graphcheck.lint.log import Call, Close, Event, Guard, Index, Log, Mode, Return, Store
from graphcheck.lint.rules.lifetimes import region_inputs
from graphcheck.lint.rules.problem import Problem, problem, quoted
from graphcheck.lint.syntax import named
from graphcheck.lint.values import Kind, Value

_INDEXED_WRITES = frozenset({"index_put_", "index_copy_", "index_add_", "scatter_", "scatter_add_", "index_fill_"})


class _Write:
    """A write into a buffer that the region reads."""

    def __init__(self, event: Event, path: str, node: ast.AST | None, unconditional: bool) -> None:
        self.event = event
        self.path = path
        self.unconditional = unconditional
        self.lower, self.upper = bounds_of(node)

    @property
    def whole(self) -> bool:
        return self.lower is None and self.upper is None


def bounds_of(node: ast.AST | None) -> tuple[ast.expr | None, ast.expr | None]:
    """The bounds of a slice that a write goes through; None and None where it is whole."""
    while isinstance(node, (ast.Call, ast.Attribute)):
        node = node.func if isinstance(node, ast.Call) else node.value
    if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Constant):
        first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
        if isinstance(first, ast.Slice):
            return first.lower, first.upper
        return node.slice, node.slice
    return None, None


def writes(log: Log) -> list[_Write]:
    """Writes between replays into what the region reads, in order."""
    inputs = region_inputs(log)
    closed = log.component is not None
    found = []
    for event in log.events:
        closed = closed or isinstance(event, Close)
        mode = event.place.mode
        if mode is not Mode.REFRESH and not (mode is Mode.HOST and closed):
            continue
        for path, node in targets(event):
            if path in inputs or (log.component is not None and path in _buffers(log)):
                found.append(_Write(event, path, node, not event.place.guards))
    return found


def _buffers(log: Log) -> set[str]:
    return {value.path for value in log.buffers.values()}


def targets(event: Event) -> Iterator[tuple[str, ast.AST | None]]:
    if isinstance(event, Call):
        node = event.node
        if event.name.startswith(".") and operators.is_in_place(event.method) and event.receiver.path:
            yield (
                event.receiver.path,
                node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None,
            )
        elif event.name == ".fill" and event.receiver.varies and event.arguments and isinstance(node, ast.Call):
            yield event.arguments[0].path, node.args[0]
        elif not event.known:
            for keyword, value in event.keywords.items():
                if keyword == "out" and value.path:
                    yield value.path, None
    elif isinstance(event, Index) and event.stored is not None and event.base.is_tensor:
        yield event.base.path, event.node


def stale_tail(log: Log) -> Iterator[Problem]:
    """GC702: only the rows of the batch at hand are refreshed."""
    written = writes(log)
    for write in written:
        if write.upper is None or write.lower is not None or isinstance(write.upper, ast.Slice):
            continue
        if _is_constant(write.upper) or isinstance(write.upper, ast.UnaryOp):
            continue
        others = [other for other in written if other.path == write.path and other is not write]
        same = [other for other in others if other.whole or (other.lower is not None and other.upper is None)]
        if same or not _first(write, written):
            continue
        if not log.component and not _varies(write.event, write.upper):
            continue
        yield problem(
            "GC702",
            write.event,
            f"{quoted(write.event.node)} refreshes the rows of this batch; rows behind keep the previous batch's values",
            f"fill {write.path}[{quoted(write.upper)}:] with a neutral value on every refresh",
        )


def _first(write: _Write, written: list[_Write]) -> bool:
    return next(other for other in written if other.path == write.path and other.upper is not None) is write


def _is_constant(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return True
    return isinstance(node, ast.Name) and node.id.isupper()


def _varies(event: Event, node: ast.expr) -> bool:
    """Whether a bound is computed where the refresh happens, and not part of the object's own configuration."""
    return isinstance(node, (ast.Name, ast.Call)) or (isinstance(node, ast.Subscript) and "shape" in ast.unparse(node))


def omitted_input(log: Log) -> Iterator[Problem]:
    """GC705: a buffer is refreshed only if an optional input is there."""
    written = writes(log)
    for write in written:
        guards = [guard for guard in write.event.place.guards if _optional(guard, log)]
        if write.unconditional or len(guards) != len(write.event.place.guards):
            continue
        if write.path.rpartition(".")[2] in _state(log):
            continue
        others = [other for other in written if other.path == write.path and other is not write]
        if any(other.unconditional or _opposite(other, write) for other in others):
            continue
        if log.component is None and not _replays(log, write.event):
            continue
        yield problem(
            "GC705",
            write.event,
            f"{write.path} is refreshed only if {quoted(guards[0].test)}; otherwise replays use the previous request's value",
            f"fill {write.path} with its neutral value in the other case",
        )


def _optional(guard: Guard, log: Log) -> bool:
    """Whether a test asks for the presence of an input."""
    if log.component is not None:
        asked: ast.expr = guard.test
        positive = guard.positive
        if isinstance(asked, ast.UnaryOp) and isinstance(asked.op, ast.Not):
            # 'if not case.dummy' asks for a request's input as well as 'if case.biased' does.
            asked = asked.operand
            positive = positive and isinstance(asked, ast.Attribute)
        return guard.value.varies and positive and "case" in " ".join(guard.value.sources) and _plain(asked)
    test = guard.test
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.comparators[0], ast.Constant):
        present = isinstance(test.ops[0], ast.IsNot) is guard.positive
        return test.comparators[0].value is None and present and isinstance(test.left, ast.Name)
    return False


def _plain(test: ast.expr) -> bool:
    return isinstance(test, (ast.Attribute, ast.Name)) or (
        isinstance(test, ast.Compare) and any(isinstance(op, (ast.Is, ast.IsNot)) for op in test.ops)
    )


def _state(log: Log) -> set[str]:
    """Buffers that the component declares as state: they live on from step to step, refreshed or not."""
    held = log.component.attribute("mutates") if log.component is not None else None
    return set(named(held[1])) if held is not None and held[1] is not None else set()


def _opposite(other: _Write, write: _Write) -> bool:
    tests = {_asked(guard) for guard in write.event.place.guards}
    return any((text, not positive) in tests for text, positive in map(_asked, other.event.place.guards))


def _asked(guard: Guard) -> tuple[str, bool]:
    """The test without its negations, and whether it holds."""
    test, positive = guard.test, guard.positive
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, positive = test.operand, not positive
    return ast.unparse(test), positive


def _replays(log: Log, event: Event) -> bool:
    return any(
        isinstance(other, Call) and other.method == "replay" and other.place.function is event.place.function
        for other in log.events
    )


def valid_sentinel(log: Log) -> Iterator[Problem]:
    """GC703: padding slots are negative, which indexing takes for the last slots."""
    for event in log.events:
        if event.place.captured:
            yield from _used_as_index(event)


def _used_as_index(event: Event) -> Iterator[Problem]:
    indices: list[Value] = []
    if isinstance(event, Index) and event.base.on_device:
        indices = list(event.index.items or (event.index,))
    elif (
        isinstance(event, Call)
        and event.method in _INDEXED_WRITES
        and event.receiver.kind in (Kind.DEVICE, Kind.UNKNOWN)
    ):
        indices = [member for value in event.arguments[:2] for member in (value.items or (value,))]
    for index in indices:
        if index.sentinel:
            yield problem(
                "GC703",
                event,
                f"padding entries of {index.path or quoted(event.node)} are negative, and {quoted(event.node)} takes -1 for the last slot",
                "reserve a dummy slot for padding, or mask negative entries first",
            )
            return


def unwritten_rows(log: Log) -> Iterator[Problem]:
    """GC704: memory that nothing wrote leaves the region, or is read in it."""
    empty: dict[str, Store] = {}
    partly: dict[str, Event] = {}
    for event in log.events:
        if not event.place.captured:
            continue
        if isinstance(event, Store) and event.local and not event.augmented and "." not in event.path:
            made = event.value.on_device and event.value.fresh and event.value.made in operators.UNWRITTEN
            if made and event.place.depth == 0:
                empty[event.path] = event
            else:
                empty.pop(event.path, None)
            continue
        if isinstance(event, Index) and event.stored is not None and event.base.path in empty:
            mask = event.index.on_device and event.index.boolean
            sliced = bool(event.bounds) and not isinstance(getattr(event.node, "slice", None), ast.Tuple)
            if mask or sliced:
                partly.setdefault(event.base.path, event)
            continue
        if isinstance(event, Call):
            touched = [value.path for value in event.inputs if value.path in empty]
            for path in touched:
                cut = event.receiver.path == path and event.receiver.partial and event.method in operators.WHOLE_WRITES
                masked = event.receiver.path == path and event.method in (
                    "masked_scatter_",
                    "masked_fill_",
                    "index_copy_",
                )
                if cut or masked:
                    partly.setdefault(path, event)
                elif event.method not in operators.HOST_METHODS | operators.VIEWS:
                    empty.pop(path, None)
        elif isinstance(event, Return) and event.depth == 0:
            leaving = {event.value.path, *(member.path for member in event.value.items or ())}
            if event.value.element is not None:
                leaving.add(event.value.element.path)
            for path in sorted(leaving & set(empty) & set(partly)):
                yield problem(
                    "GC704",
                    partly[path],
                    f"{path} is torch.empty (line {getattr(empty[path].node, 'lineno', 0)}) and written in part only; rows without a token leave as noise or NaN",
                    "start from torch.zeros, or write every row",
                )


RULES = {
    stale_tail: ("GC702",),
    valid_sentinel: ("GC703",),
    unwritten_rows: ("GC704",),
    omitted_input: ("GC705",),
}
