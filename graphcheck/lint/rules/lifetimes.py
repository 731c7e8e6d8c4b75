"""GC4xx: addresses that move or die."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from graphcheck.lint import operators
from graphcheck.lint.log import Call, Close, Enter, Event, Log, Mode, Open, Read, Store
from graphcheck.lint.package import ClassInfo, FunctionInfo
from graphcheck.lint.rules.guards import grows
from graphcheck.lint.rules.problem import Problem, problem, quoted
from graphcheck.lint.values import Kind, Value

_AUTOCAST = ("torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast")


def region_inputs(log: Log) -> dict[str, Value]:
    """Paths that the region reads before it stores them, with the value at capture."""
    stored: set[str] = set()
    found: dict[str, Value] = {}
    for event in log.events:
        if not event.place.captured:
            continue
        if isinstance(event, Store) and (event.place.depth == 0 or "." in event.path):
            stored.add(event.path)
        elif isinstance(event, Read) and event.path not in stored and (event.place.depth == 0 or "." in event.path):
            found.setdefault(event.path, event.value)
    return found


def region_outputs(log: Log) -> set[str]:
    """Paths that the region binds at its own level: a replay overwrites what they hold."""
    return {
        event.path
        for event in log.stores()
        if event.place.depth == 0 and event.path and event.value.kind in (Kind.DEVICE, Kind.UNKNOWN, Kind.CONTAINER)
    }


def rebound(log: Log) -> Iterator[Problem]:
    """GC401, GC402 and GC404: what the region reads gets other memory."""
    inputs = region_inputs(log)
    renewing = recapturing(log)
    closed = False
    for event in log.events:
        closed = closed or isinstance(event, Close)
        if not isinstance(event, Store) or event.augmented or not event.path:
            continue
        refresh = event.place.mode is Mode.REFRESH
        if refresh and event.place.function is not None and id(event.place.function) in renewing:
            continue
        if refresh and event.path.startswith("buffers."):
            yield _rebinding(event, event.path)
        elif refresh and event.path.startswith("self."):
            path = event.path.removesuffix("[]")
            at_capture = inputs.get(path)
            if at_capture is None and not any(name.startswith(f"{path}[]") for name in inputs):
                continue
            if (event.value.holds_device_tensor() and not event.path.endswith("[]") and event.value.path != path) or (
                event.value.kind is Kind.UNKNOWN
                and at_capture is not None
                and at_capture.on_device
                and not event.value.path.startswith(path)
            ):
                yield _rebinding(event, path)
        elif event.place.mode is Mode.HOST and closed and event.local and event.path in inputs:
            at_capture = inputs[event.path]
            if (
                at_capture.on_device
                and not event.value.output
                and _replayed_after(log, event)
                and event.value.kind in (Kind.DEVICE, Kind.UNKNOWN)
                and event.value.path != at_capture.path
            ):
                yield _rebinding(event, event.path)


def _rebinding(event: Store, path: str) -> Problem:
    if grows(event):
        return problem(
            "GC404",
            event,
            f"{path} is replaced by a larger buffer; graphs captured before go on using the old address",
            "size it for the maximum before the first capture, or capture again after it grew",
        )
    if event.value.kind is Kind.CONTAINER:
        return problem(
            "GC402",
            event,
            f"{path} drops the tensors that the graph reads; replays read freed memory",
            "keep one tensor for the graph and copy_ the new content into it",
        )
    return problem(
        "GC401",
        event,
        f"{path} is bound to another tensor, but the graph goes on reading the one of the capture",
        f"{path}.copy_(...) keeps the address",
    )


def _replayed_after(log: Log, store: Event) -> bool:
    seen = False
    for event in log.events:
        seen = seen or event is store
        if seen and isinstance(event, Call) and event.method in ("replay", "launch"):
            return True
    return False


def recapturing(log: Log) -> set[int]:
    """Functions that drop or renew the graph themselves."""
    found: set[int] = set()
    own = log.function.name if log.function is not None else ""
    for event in log.events:
        function = event.place.function
        if function is None or event.place.mode is not Mode.REFRESH:
            continue
        if (isinstance(event, Store) and "graph" in event.path.lower()) or (
            isinstance(event, Call) and event.method in (own, "reset")
        ):
            found.add(id(function))
    return found


def freed(log: Log) -> Iterator[Problem]:
    """GC402: a local tensor that only the graph still needs."""
    function = log.function
    if function is None or log.component is not None or log.contract is not None:
        return
    opened = next((event for event in log.events if isinstance(event, Open) and event.place.depth == 0), None)
    if (
        opened is None
        or not opened.graph.path
        or any(event.place.calls for event in log.events if isinstance(event, Open))
    ):
        return
    kept = _names_that_leave(function)
    if opened.graph.path.partition(".")[0] not in kept | {"self"}:
        return
    for path, value in region_inputs(log).items():
        local = "." not in path and value.on_device and value.made and not value.fresh
        if local and path not in kept and path not in _parameters(function):
            store = next((e for e in log.stores(Mode.HOST) if e.path == path), None)
            if store is not None and store.local:
                yield problem(
                    "GC402",
                    store,
                    f"{path} is freed when {function.name} returns, but the graph that leaves it goes on reading that memory",
                    f"return or store {path} together with the graph",
                )


def _names_that_leave(function: FunctionInfo) -> set[str]:
    """Names that a function returns, stores or hands to a closure."""
    kept: set[str] = set()
    for node in ast.walk(function.node):
        leaving: list[ast.AST | None] = []
        if isinstance(node, (ast.Return, ast.Yield)) or (
            isinstance(node, ast.Assign) and not all(isinstance(target, ast.Name) for target in node.targets)
        ):
            leaving = [node.value]
        elif isinstance(node, ast.Global):
            kept.update(node.names)
        elif isinstance(node, (ast.FunctionDef, ast.Lambda)) and node is not function.node:
            leaving = [node]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("append", "add", "setdefault", "update")
        ):
            leaving = list(node.args)
        for part in leaving:
            if part is not None:
                kept |= {name.id for name in ast.walk(part) if isinstance(name, ast.Name)}
    return kept


def _parameters(function: FunctionInfo) -> set[str]:
    arguments = function.node.args
    return {argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}


def moved(log: Log) -> Iterator[Problem]:
    """GC403 and GC404: state gets other memory under the graph; GC410: inside the region."""
    reads = log.read_paths()
    renewing = recapturing(log)
    closed = False
    for event in log.events:
        closed = closed or isinstance(event, Close)
        function = event.place.function
        later = event.place.mode is Mode.REFRESH and (function is None or id(function) not in renewing)
        later = later or (event.place.mode is Mode.HOST and closed)
        if not later:
            continue
        path = ""
        if isinstance(event, Store) and event.path.endswith(".data"):
            path = event.path.removesuffix(".data")
        elif isinstance(event, Call) and event.name.startswith(".") and event.method in operators.MOVES:
            path = event.receiver.path
        if not path or not any(name in reads for name in (path, ".".join(path.split(".")[:2]))):
            continue
        if "." not in path and path not in reads:
            continue
        code = "GC404" if grows(event) else "GC403"
        yield problem(
            code,
            event,
            f"{path} gets other memory here, but the graph goes on reading the address of the capture",
            f"{path}.copy_(...) keeps the address, or capture again",
        )


def disposed(log: Log) -> Iterator[Problem]:
    """GC410: storage emptied before a later kernel records its address."""
    emptied: dict[str, Call] = {}
    storages: dict[int, str] = {}
    for event in log.events:
        if not event.place.captured:
            continue
        if isinstance(event, Call) and event.method in ("untyped_storage", "storage") and event.receiver.path:
            storages[id(event.node)] = event.receiver.path
        elif isinstance(event, Store):
            emptied.pop(event.path, None)
        if isinstance(event, Call) and isinstance(event.node, ast.Call) and isinstance(event.node.func, ast.Attribute):
            zero = bool(event.arguments) and event.arguments[0].constant == 0
            path = storages.get(id(event.node.func.value), event.receiver.path)
            if path and (event.method == "set_" or (event.method == "resize_" and zero)):
                emptied[path] = event
                continue
        if isinstance(event, Read) and event.path in emptied:
            first = emptied.pop(event.path)
            yield problem(
                "GC410",
                first,
                f"{event.path} is emptied here and used again at line {getattr(event.node, 'lineno', 0)}: that kernel records a null address",
                "dispose of it last, or keep an alias of the storage",
            )


def cached_factory(log: Log) -> Iterator[Problem]:
    """GC405: a cached factory whose first call may be the capture."""
    for call in log.calls():
        if not isinstance(call.node, ast.Call):
            continue
        for decorated in _cached(log, call):
            yield problem(
                "GC405",
                call,
                f"{quoted(call.node)} caches a tensor; if the capture calls it first, the tensor lies in the graph's pool",
                f"call {decorated.name} before the capture, or pass the tensor in",
            )


def _cached(log: Log, call: Call) -> Iterator[FunctionInfo]:
    if not call.known or not isinstance(call.node, ast.Call):
        return
    found = call.place.module.package.resolve(call.name) if not call.name.startswith(".") else None
    owner = call.receiver.definition
    if found is None and isinstance(owner, ClassInfo):
        found = owner.method(call.method)
    if isinstance(found, FunctionInfo) and call.result.holds_device_tensor():
        names = {name.rpartition(".")[2] for name, _ in found.decorator_names()}
        if names & {"lru_cache", "cache"}:
            yield found


def autocast_outside(log: Log) -> Iterator[Problem]:
    """GC406: autocast entered outside, the region inside it."""
    entered: Enter | None = None
    for event in log.events:
        if (
            isinstance(event, Enter)
            and event.name in _AUTOCAST
            and event.place.mode is Mode.HOST
            and not event.place.region
        ):
            node = event.node
            keywords = node.keywords if isinstance(node, ast.Call) else []
            off = any(
                k.arg in ("cache_enabled", "enabled") and isinstance(k.value, ast.Constant) and not k.value.value
                for k in keywords
            )
            entered = None if off else event
        elif (
            isinstance(event, Open) and entered is not None and any(name in _AUTOCAST for name in event.place.contexts)
        ):
            yield problem(
                "GC406",
                entered,
                "autocast is entered outside the region: the graph may read casts made before, and miss later weight updates",
                "pass cache_enabled=False, or enter autocast inside the region",
            )
            entered = None


RULES = {
    rebound: ("GC401", "GC402", "GC404"),
    freed: ("GC402",),
    moved: ("GC403", "GC404"),
    cached_factory: ("GC405",),
    autocast_outside: ("GC406",),
    disposed: ("GC410",),
}
