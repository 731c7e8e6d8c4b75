"""Walks statements in the order of execution and writes down what happens inside and around captured regions."""

from __future__ import annotations

import ast
import contextlib
from dataclasses import replace

from graphcheck.lint import log as events
from graphcheck.lint import operators
from graphcheck.lint.division import Division
from graphcheck.lint.frames import Refused
from graphcheck.lint.log import Guard, Mode
from graphcheck.lint.package import ClassInfo, FunctionInfo
from graphcheck.lint.syntax import loaded, type_checking
from graphcheck.lint.values import CONSTANT, DEVICE, UNKNOWN, Kind, Value, join


class Walk(Division):
    """Walks statements; `body` returns whether the path ends there."""

    def body(self, statements: list[ast.stmt]) -> bool:
        guards = self.guards
        try:
            for number, statement in enumerate(statements):
                self.spend()
                if isinstance(statement, ast.If):
                    if self._if(statement, statements[number + 1 :]):
                        return True
                    continue
                handler = getattr(self, f"_on_{type(statement).__name__.lower()}", None)
                if handler is not None and handler(statement):
                    return True
        finally:
            self.guards = guards
        return False

    def _on_expr(self, node: ast.Expr) -> bool:
        self._marker(node.value)
        self.value(node.value)
        return False

    def _marker(self, node: ast.expr) -> None:
        """Open or close a region that a pair of calls delimits."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return
        if node.func.attr in operators.BEGINS and self.mode is Mode.HOST and not self.region:
            self._open(node, self.value(node.func.value), {}, node.func.attr)
        elif node.func.attr in operators.ENDS and self.region and self.mode is Mode.REGION:
            self._close(node)

    def graphed(self, node: ast.Call, arguments: list[Value]) -> Value:
        """``make_graphed_callables``: each callable is a region that gets device tensors."""
        given = arguments[0] if arguments else UNKNOWN
        callables = given.items if given.items is not None else (given,)
        for each in callables:
            function, bound = each.definition, each.bound
            if isinstance(function, ClassInfo) and each.kind is Kind.OBJECT:
                function, bound = function.method("forward"), each if each.path else each.at("module")
            if isinstance(function, FunctionInfo) and self.mode is Mode.HOST and not self.region:
                taken = function.node.args
                names = [a for a in (*taken.posonlyargs, *taken.args) if a.arg != "self"]
                samples = [self.refined(UNKNOWN, self.annotated(name.annotation, function.module)) for name in names]
                tensors = [DEVICE if sample.kind is Kind.UNKNOWN else sample for sample in samples]
                self._open(node, UNKNOWN, {}, "make_graphed_callables")
                with contextlib.suppress(Refused):
                    self.enter(function, tensors, {}, bound, node)
                self._close(node)
        return given

    def _open(self, node: ast.AST, graph: Value, keywords: dict[str, Value], how: str) -> None:
        self.regions += 1
        self.region, self.mode, self.region_depth = self.regions, Mode.REGION, len(self.calls)
        self.emit(events.Open(node, self.place(), graph, keywords, self.region, how))

    def _close(self, node: ast.AST, early: bool = False) -> None:
        self.emit(events.Close(node, self.place(), self.region, early))
        self.region, self.mode = 0, Mode.HOST

    def _on_assign(self, node: ast.Assign) -> bool:
        self._marker(node.value)
        value = self.value(node.value)
        for target in node.targets:
            self.bind(target, value, node)
        return False

    def _on_annassign(self, node: ast.AnnAssign) -> bool:
        if node.value is not None:
            value = self.value(node.value)
            annotated = self.annotated(node.annotation, self.frame.module)
            self.bind(node.target, annotated if value.kind is Kind.UNKNOWN else value, node)
        return False

    def _on_augassign(self, node: ast.AugAssign) -> bool:
        load = ast.copy_location(ast.BinOp(left=loaded(node.target), op=node.op, right=node.value), node)
        before = self.value(load.left)
        value = self.value(load)
        kept = before if before.is_tensor else value
        self.bind(node.target, kept, node, augmented=True)
        return False

    def bind(self, target: ast.expr, value: Value, node: ast.AST | None = None, augmented: bool = False) -> None:
        """Give a target its value."""
        node = node if node is not None else target
        if isinstance(target, (ast.Tuple, ast.List)):
            members = value.items if value.items is not None and len(value.items) == len(target.elts) else None
            for number, part in enumerate(target.elts):
                inner = part.value if isinstance(part, ast.Starred) else part
                self.bind(inner, members[number] if members is not None else self.iterated(value), node)
        elif isinstance(target, ast.Name):
            self._bind_name(target.id, value, node, augmented)
        elif isinstance(target, ast.Attribute):
            base = self.value(target.value)
            path = f"{base.path}.{target.attr}" if base.path else ""
            before = self.heap.get(path, UNKNOWN)
            self.emit(events.Store(node, self.place(), path, base, value, augmented, before=before))
            if path:
                self._keep(path, base, target.attr, value, augmented)
        elif isinstance(target, ast.Subscript):
            base = self.value(target.value)
            index, bounds = self.index(target.slice)
            self.emit(events.Index(target, self.place(), base, index, bounds, stored=value))
            if not base.is_tensor:
                self.emit(
                    events.Store(node, self.place(), f"{base.path}[]" if base.path else "", base, value, augmented)
                )
                if base.kind is Kind.CONTAINER and base.path:
                    element = value if base.element is None else join(base.element, value)
                    self.heap[base.path] = replace(base, element=element, items=None)

    def _keep(self, path: str, base: Value, name: str, value: Value, augmented: bool) -> None:
        """Remember what an attribute holds from here on."""
        if self.mode is Mode.REFRESH and self.log.component is None and base.path == "self":
            # Between replays the region still reads what was there at capture, unless it was a host value.
            owner = base.definition
            before = self.heap.get(path) or (self.initial(owner, name) if isinstance(owner, ClassInfo) else UNKNOWN)
            host = value.kind in (Kind.UNKNOWN, Kind.VARYING, Kind.READ) or (
                (value.kind is Kind.CONSTANT and value.constant is None) or augmented
            )
            if before.kind is Kind.CONSTANT and host and isinstance(before.constant, (int, float)):
                self.heap[path] = Value(Kind.VARYING, path=path, sources=frozenset({path}))
            elif before.kind is not Kind.UNKNOWN:
                self.heap[path] = replace(before, path=path)
            return
        if self.captured and augmented and value.kind is Kind.CONSTANT:
            # A counter of the region goes on counting in eager execution only.
            value = Value(Kind.VARYING, path=path, sources=frozenset({path}))
        if base.kind is Kind.BUFFERS and not value.is_tensor:
            value = DEVICE
        self.heap[path] = value if augmented else replace(value, path=path)

    def _bind_name(self, name: str, value: Value, node: ast.AST, augmented: bool) -> None:
        frame = self.frame
        outer = name in frame.outer_names
        before = self.lookup(name)
        path = name if not self.calls and frame.function is self.log.function else value.path
        self.emit(events.Store(node, self.place(), name, UNKNOWN, value, augmented, local=not outer, before=before))
        if augmented and before.is_tensor:
            return
        if name in self.rebound and not self.calls and value.kind is Kind.CONSTANT and not value.symbol:
            value = Value(Kind.VARYING, sources=frozenset({name}))
        env = frame.env
        if outer and frame.parent is not None:
            env = frame.parent.env
        kinds = (Kind.DEVICE, Kind.HOST, Kind.OBJECT, Kind.CONTAINER, Kind.BUFFERS, Kind.STREAM, Kind.EVENT, Kind.GRAPH)
        aliased = value.path and value.kind in kinds
        env[name] = value if aliased else replace(value, path=path or value.path)

    def _on_return(self, node: ast.Return) -> bool:
        value = self.value(node.value) if node.value is not None else CONSTANT
        self.emit(events.Return(node, self.place(), value, self.depth))
        self.frame.returns.append(value)
        return True

    def _on_raise(self, node: ast.Raise) -> bool:
        return True

    def _on_continue(self, node: ast.stmt) -> bool:
        return True

    _on_break = _on_continue

    def _on_assert(self, node: ast.Assert) -> bool:
        self.emit(events.Test(node, self.place(), self.value(node.test), "assert"))
        return False

    def _on_delete(self, node: ast.Delete) -> bool:
        return False

    def _on_global(self, node: ast.Global | ast.Nonlocal) -> bool:
        self.frame.outer_names.update(node.names)
        return False

    _on_nonlocal = _on_global

    def _on_import(self, node: ast.Import | ast.ImportFrom) -> bool:
        for name, dotted in self.frame.module.imported(node).items():
            self.frame.env[name] = self.imported(dotted)
        return False

    _on_importfrom = _on_import

    def _on_functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        made = FunctionInfo(self.frame.module, node, None)
        self.closures[id(made)] = (made, self.frame)
        self.frame.env[node.name] = Value(Kind.SYMBOL, symbol=node.name, definition=made)
        return False

    _on_asyncfunctiondef = _on_functiondef

    def _if(self, node: ast.If, rest: list[ast.stmt]) -> bool:
        polarity = self.polarity(node.test) if self.captured and not self.silent else None
        if polarity is not None:
            return self._divided(node, polarity, rest)
        test = self.value(node.test)
        number = len(self.log.events)
        self.emit(events.Test(node.test, self.place(), test, "if"))
        decided = type_checking(node.test)
        before = dict(self.frame.env)
        first = self._arm(node.body, Guard(node.test, True, test, self.frame.module)) if not decided else True
        works = self._works_since(number)
        after, self.frame.env = self.frame.env, before if first else dict(before)
        middle = len(self.log.events)
        second = self._arm(node.orelse, Guard(node.test, False, test, self.frame.module))
        if not self.silent and number < len(self.log.events):
            event = self.log.events[number]
            if isinstance(event, events.Test):
                event.arms = (works, self._works_since(middle) or (first and bool(rest)))
        if not first:
            self.frame.env = after if second else _merged(after, self.frame.env)
        if first and not second:
            self.guards = (*self.guards, Guard(node.test, False, test, self.frame.module))
        return first and second

    def _arm(self, statements: list[ast.stmt], guard: Guard) -> bool:
        saved = self.guards
        self.guards = (*self.guards, guard)
        try:
            return self.body(statements)
        except Refused:
            return True
        finally:
            self.guards = saved

    def _works_since(self, number: int) -> bool:
        """Whether device work was logged from there on."""
        return any(_is_work(event) for event in self.log.events[number:])

    def _on_while(self, node: ast.While) -> bool:
        test = self.value(node.test)
        event = events.Test(node.test, self.place(), test, "while")
        self.emit(event)
        number = len(self.log.events)
        self._loop_body(node.body, node.orelse)
        works = self._works_since(number)
        event.arms = (works, works)
        return False

    def _on_for(self, node: ast.For | ast.AsyncFor) -> bool:
        source = self.value(node.iter)
        event = events.Loop(node.iter, self.place(), source)
        self.emit(event)
        number = len(self.log.events)
        self.bind(node.target, self.iterated(source), node)
        self._loop_body(node.body, node.orelse)
        event.works = self._works_since(number)
        return False

    _on_asyncfor = _on_for

    def _loop_body(self, body: list[ast.stmt], orelse: list[ast.stmt]) -> None:
        before = dict(self.frame.env)
        self.loops += 1
        try:
            self.body(body)
        except Refused:
            pass
        finally:
            self.loops -= 1
        self.frame.env = _merged(before, self.frame.env)
        self.body(orelse)

    def _on_try(self, node: ast.Try) -> bool:
        before = dict(self.frame.env)
        ended = self.body(node.body) or self.body(node.orelse)
        after = self.frame.env
        mode, region = self.mode, self.region
        for handler in node.handlers:
            self.frame.env = _merged(before, after)
            self.body(handler.body)
            self.mode, self.region = mode, region
        self.frame.env = after
        return self.body(node.finalbody) or ended

    _on_trystar = _on_try

    def _on_with(self, node: ast.With | ast.AsyncWith) -> bool:
        entered: list[tuple[str, Value, bool]] = []
        contexts = self.contexts
        for item in node.items:
            value = self.value(item.context_expr)
            call = item.context_expr if isinstance(item.context_expr, ast.Call) else None
            name = self.value_symbol(call.func) if call is not None else value.symbol
            subject = value
            if call is not None and call.args and not value.path:
                subject = self._again(call.args[0])
            opens = (name in operators.GRAPH_CONTEXTS) and self.mode is Mode.HOST and not self.region
            self.emit(events.Enter(item.context_expr, self.place(), name, subject))
            if item.optional_vars is not None:
                self.bind(item.optional_vars, value, node)
            if opens and call is not None:
                keywords = {keyword.arg or "**": self._again(keyword.value) for keyword in call.keywords}
                self._open(node, subject, keywords, "graph")
            self.contexts = (*self.contexts, name)
            entered.append((name, subject, opens))
        ended = self.body(node.body)
        for name, subject, opens in reversed(entered):
            if opens and self.region:
                self._close(node, early=ended)
            self.emit(events.Leave(node, self.place(), name, subject))
        self.contexts = contexts
        return ended

    _on_asyncwith = _on_with

    def value_symbol(self, node: ast.expr) -> str:
        """Dotted name of a callable, without events."""
        self.silent += 1
        try:
            return self.value(node).symbol
        finally:
            self.silent -= 1

    def _again(self, node: ast.expr) -> Value:
        self.silent += 1
        try:
            return self.value(node)
        finally:
            self.silent -= 1

    def _on_match(self, node: ast.Match) -> bool:
        subject = self.value(node.subject)
        self.emit(events.Test(node.subject, self.place(), subject, "match", (True, True)))
        before = dict(self.frame.env)
        merged = before
        for case in node.cases:
            self.frame.env = dict(before)
            self.body(case.body)
            merged = _merged(merged, self.frame.env)
        self.frame.env = merged
        return False


def _merged(left: dict[str, Value], right: dict[str, Value]) -> dict[str, Value]:
    """What holds of each name after either of two paths."""
    merged = dict(left)
    for name, value in right.items():
        merged[name] = join(left[name], value) if name in left and left[name] != value else value
    return merged


def _is_work(event: events.Event) -> bool:
    if isinstance(event, events.Call):
        return event.result.on_device or (event.receiver.on_device and operators.is_in_place(event.method))
    # In a region, arithmetic on values of unknown origin is arithmetic on tensors.
    unknown = event.place.captured and isinstance(event, events.Binary) and event.result.kind is Kind.UNKNOWN
    return unknown or (isinstance(event, events.Binary) and event.result.on_device)
