"""Finds the captured regions of a module and walks each with the code around it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from graphcheck.lint import operators
from graphcheck.lint.frames import Exhausted, Frame, Refused
from graphcheck.lint.log import Close, Log, Mode, Open
from graphcheck.lint.package import ClassInfo, FunctionInfo, ModuleInfo, Package
from graphcheck.lint.syntax import named
from graphcheck.lint.values import CONSTANT, DEVICE, UNKNOWN, Kind, Value
from graphcheck.lint.walk import Walk

DECORATORS = ("graphcheck.capture_safe", "graphcheck.contract.capture_safe")
COMPONENTS = ("graphcheck.Component", "graphcheck.component.Component")
ROLES = ("dynamic", "static", "out", "workspace")
_MARKERS = (
    "capture_safe",
    "graphcheck",
    "cuda.graph",
    "graph(",
    "make_graphed_callables",
    *sorted(operators.BEGINS),
)


def logs(module: ModuleInfo, components: bool) -> Iterator[Log]:
    """The walked regions of a module, in the order of its lines.

    Args:
        module: where to look.
        components: whether the tree knows graphcheck at all, so that a class may be a component.
    """
    text = module.source.text
    marked = any(marker in text for marker in _MARKERS)
    if module.source.tree is None or not (marked or (components and module.classes)):
        return
    if components:
        for owner in module.every_class:
            if is_component(owner):
                yield from _walked(_component, module.package, owner)
    if not marked:
        return
    functions = list(_functions(module))
    capturing = {id(function) for function, _ in functions if _captures(function.node.body, module)}
    names = {function.name for function, _ in functions if id(function) in capturing}
    for function, decorated in functions:
        if decorated is not None:
            yield from _walked(_contract, module.package, function, decorated)
        elif id(function) in capturing or (names and _calls(function.node, names)):
            yield from _walked(_around, module.package, function)
    if _captures(module.source.tree.body, module) or (names and _calls_at_top(module.source.tree, names)):
        yield from _walked(_top, module.package, module)


def is_component(owner: ClassInfo) -> bool:
    """Whether a class is a component with a region of its own."""
    lineage = owner.lineage()
    bases = {f"{each.module.name}.{each.name}" for each in lineage} | set(owner.foreign_bases)
    if not bases & set(COMPONENTS) or f"{owner.module.name}.{owner.name}" in COMPONENTS:
        return False
    method = owner.method("run")
    return method is not None and method.owner is not None and method.owner.name != "Component"


def _walked(kind: object, package: Package, *arguments: object) -> Iterator[Log]:
    log: Log | None = None
    walk: Walk | None = None
    try:
        log, walk, steps = kind(package, *arguments)  # type: ignore[operator]
        for step in steps:
            try:
                step()
            except Refused:
                continue
    except (Exhausted, RecursionError):
        if log is not None:
            log.exhausted = True
    if log is None:
        log = _unread(arguments[0])
    if log is not None:
        yield log


def _unread(where: object) -> Log | None:
    """An empty log of a region that is nested too deeply to be looked at."""
    if isinstance(where, (FunctionInfo, ClassInfo)):
        return Log(where.name, where.module, where.node, exhausted=True)
    if isinstance(where, ModuleInfo) and where.source.tree is not None:
        return Log(where.name, where, where.source.tree, exhausted=True)
    return None


def _component(package: Package, owner: ClassInfo) -> tuple[Log, Walk, Iterator[object]]:
    """A component: prepared, keyed, staged, captured and observed, in this order."""
    method = owner.method("run")
    log = Log(f"{owner.name}.run", owner.module, owner.node, method, component=owner, owner=owner)
    walk = Walk(package, log)
    own = Value(Kind.OBJECT, path="self", symbol=owner.name, definition=owner)
    case = Value(Kind.VARYING, path="case", sources=frozenset({"case"}))
    buffers = Value(Kind.BUFFERS, path="buffers")
    outputs = Value(Kind.CONTAINER, path="outputs", element=replace(DEVICE, output=True))

    def run(name: str, mode: Mode, *arguments: Value) -> object:
        def step() -> None:
            function = owner.method(name)
            if function is None or function.owner is None or _is_base(function.owner):
                return
            walk.mode, walk.calls, walk.region_depth, walk.guards = mode, (), 0, ()
            if mode is Mode.REGION:
                walk.regions += 1
                walk.region = walk.regions
                log.events.append(Open(function.node, walk.place(), UNKNOWN, {}, walk.region, "component"))
            walk.frame = walk.activation(function, list(arguments), {}, own)
            walk.stack = [id(function)]
            try:
                walk.body(function.node.body)
                if mode is Mode.KEY:
                    log.keyed = True
                    log.key_sources = frozenset().union(*map(_sources, walk.frame.returns), frozenset())
            finally:
                if mode is Mode.REGION:
                    log.events.append(Close(function.node, walk.place(), walk.region))
                    walk.region = 0

        return step

    steps = [
        run("__init__", Mode.PREPARE),
        run("allocate", Mode.PREPARE, CONSTANT),
        run("key", Mode.KEY, case),
        run("stage", Mode.REFRESH, buffers, case),
        run("run", Mode.REGION, buffers),
        run("observe", Mode.OBSERVE, buffers, outputs),
    ]
    return log, walk, iter(steps)


def _sources(value: Value) -> frozenset[str]:
    """Where a value and the members of a tuple come from."""
    members = (*(value.items or ()), *((value.element,) if value.element is not None else ()))
    return value.sources.union(*map(_sources, members), frozenset())


def _is_base(owner: ClassInfo) -> bool:
    return f"{owner.module.name}.{owner.name}" in COMPONENTS


def _contract(package: Package, function: FunctionInfo, decorator: ast.expr) -> tuple[Log, Walk, Iterator[object]]:
    """A decorated function: its arguments are what its contract says."""
    log = Log(function.qualname, function.module, function.node, function, owner=function.owner)
    walk = Walk(package, log)
    contract: dict[str, Value] = {}
    roles: dict[str, str] = {}
    if isinstance(decorator, ast.Call):
        for keyword in decorator.keywords:
            if keyword.arg in ROLES:
                for name in named(keyword.value):
                    roles[name] = keyword.arg
                contract[keyword.arg] = CONSTANT
            elif keyword.arg == "allow":
                log.allowed, log.allowing = tuple(named(keyword.value)), keyword.value
    log.contract = contract
    env = walk.parameters(function, None)
    for name, value in env.items():
        env[name] = _argument(name, value, roles.get(name, ""))
    own = None
    if function.owner is not None and "self" in env:
        own = env["self"] = Value(Kind.OBJECT, path="self", symbol=function.owner.name, definition=function.owner)

    def step() -> None:
        walk.mode, walk.region, walk.regions = Mode.REGION, 1, 1
        log.events.append(Open(function.node, walk.place(), UNKNOWN, {}, 1, "contract"))
        walk.frame = Frame(function.module, function, env, self_value=own)
        walk.stack = [id(function)]
        try:
            walk.body(function.node.body)
        finally:
            log.events.append(Close(function.node, walk.place(), 1))

    return log, walk, iter([step])


def _argument(name: str, annotated: Value, role: str) -> Value:
    """What the contract says of an argument."""
    if role == "static":
        return annotated if annotated.kind is not Kind.UNKNOWN else replace(CONSTANT, path=name)
    if annotated.kind is Kind.CONSTANT:
        return Value(Kind.VARYING, path=name, sources=frozenset({name}))
    if role and annotated.kind is Kind.UNKNOWN:
        return replace(DEVICE, path=name)
    return annotated


def _around(package: Package, function: FunctionInfo) -> tuple[Log, Walk, Iterator[object]]:
    """A function that captures: its class is constructed, its other methods refresh, then it runs."""
    log = Log(function.qualname, function.module, function.node, function, owner=function.owner)
    walk = Walk(package, log)
    walk.rebound = _rebound(function.node)
    owner = function.owner
    own = None
    if owner is not None:
        own = Value(Kind.OBJECT, path="self", symbol=owner.name, definition=owner)

    def run(method: FunctionInfo, mode: Mode) -> object:
        def step() -> None:
            walk.mode, walk.calls, walk.region, walk.region_depth, walk.guards = mode, (), 0, 0, ()
            env = walk.parameters(method, {"self": own} if own is not None else None)
            walk.frame = Frame(method.module, method, env, self_value=own)
            walk.stack = [id(method)]
            walk.body(method.node.body)

        return step

    steps = []
    if owner is not None and own is not None:
        constructor = owner.method("__init__")
        if constructor is not None and constructor is not function:
            steps.append(run(constructor, Mode.PREPARE))
        early = _reached(owner, ["__init__", "__post_init__", function.name])
        for name, method in owner.methods.items():
            if name not in early and not name.startswith("__"):
                steps.append(run(method, Mode.REFRESH))
    steps.append(run(function, Mode.HOST))
    return log, walk, iter(steps)


def _top(package: Package, module: ModuleInfo) -> tuple[Log, Walk, Iterator[object]]:
    """A module that captures at its top level."""
    tree = module.source.tree
    if tree is None:
        raise Exhausted
    log = Log(module.name, module, tree)
    walk = Walk(package, log)
    walk.rebound = _rebound(tree)

    def step() -> None:
        walk.frame = Frame(module)
        walk.body(tree.body)

    return log, walk, iter([step])


def _functions(module: ModuleInfo) -> Iterator[tuple[FunctionInfo, ast.expr | None]]:
    """Functions and methods of a module in the order of lines, with the contract's decorator where there is one."""
    for function in module.functions_inside():
        decorated = next((node for name, node in function.decorator_names() if name in DECORATORS), None)
        yield function, decorated


def _captures(body: list[ast.stmt], module: ModuleInfo) -> bool:
    """Whether statements open a region themselves."""
    for node in _own_nodes(body):
        if isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                call = item.context_expr
                if isinstance(call, ast.Call) and module.dotted(call.func) in operators.GRAPH_CONTEXTS:
                    return True
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in operators.BEGINS:
                return True
            if module.dotted(node.func).endswith("make_graphed_callables"):
                return True
    return False


def _calls(function: ast.AST, names: set[str]) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in names and any(
                isinstance(argument, (ast.Name, ast.Attribute, ast.Lambda)) for argument in node.args
            ):
                return True
    return False


def _calls_at_top(tree: ast.Module, names: set[str]) -> bool:
    return any(_calls(statement, names) for statement in tree.body if not isinstance(statement, _SCOPES))


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _own_nodes(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Nodes of statements, without those of functions and classes defined in them."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, _SCOPES):
            continue
        yield node
        waiting += ast.iter_child_nodes(node)


def _reached(owner: ClassInfo, names: list[str]) -> set[str]:
    """Methods that these call on ``self``, however far, and these."""
    seen: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        method = owner.method(name)
        if name in seen or method is None:
            continue
        seen.add(name)
        for node in ast.walk(method.node):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                waiting.append(node.attr)
    return seen


def _rebound(scope: ast.AST) -> frozenset[str]:
    """Names that are given a value behind a region, in code that replays."""
    end = 0
    stored: list[tuple[int, str]] = []
    replays = False
    for node in ast.walk(scope):
        if isinstance(node, (ast.With, ast.AsyncWith)) and any(
            "graph" in ast.unparse(item.context_expr) for item in node.items
        ):
            end = node.end_lineno or 0 if not end else min(end, node.end_lineno or end)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in operators.ENDS:
                end = node.lineno if not end else min(end, node.lineno)
            replays = replays or node.func.attr in ("replay", "launch")
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            stored.append((node.lineno, node.id))
    if not end or not replays:
        return frozenset()
    return frozenset(name for line, name in stored if line > end)
