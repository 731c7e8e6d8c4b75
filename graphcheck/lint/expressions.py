"""Abstract evaluation of expressions: what kind of value each one has, and the events that rules read."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace

from graphcheck.lint import log as events
from graphcheck.lint.attributes import MIRRORS, Attributes
from graphcheck.lint.log import Mode
from graphcheck.lint.package import FunctionInfo
from graphcheck.lint.values import (
    CONSTANT,
    DEVICE,
    UNKNOWN,
    Kind,
    Value,
    constant,
    container,
    join,
    join_all,
    tainted,
    varying,
)


class Expressions(Attributes):
    """Evaluates expressions in the frame at hand."""

    def value(self, node: ast.expr | None) -> Value:
        """What is known of an expression's value."""
        if node is None:
            return CONSTANT
        self.spend()
        handler: Callable[[ast.expr], Value] | None = getattr(self, f"_{type(node).__name__.lower()}", None)
        if handler is not None:
            return handler(node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child)
        return UNKNOWN

    def _constant(self, node: ast.Constant) -> Value:
        return constant(node.value)

    def _name(self, node: ast.Name) -> Value:
        found = self.lookup(node.id)
        if found.path and self.mode in (Mode.REGION, Mode.HOST):
            self.emit(events.Read(node, self.place(), found.path, found))
        if found.kind is Kind.UNKNOWN and node.id.endswith(MIRRORS):
            return replace(varying(node.id), path=found.path)
        return found

    def lookup(self, name: str) -> Value:
        """What a bare name means here."""
        frame = self.frame
        for env in frame.scopes:
            if name in env:
                return env[name]
        module = frame.module
        if name in module.functions:
            return Value(Kind.SYMBOL, symbol=f"{module.name}.{name}", definition=module.functions[name])
        if name in module.classes:
            return Value(Kind.SYMBOL, symbol=f"{module.name}.{name}", definition=module.classes[name])
        if name in module.imports:
            return self.imported(module.imports[name])
        if name in module.globals:
            return self.module_global(module, name)
        return Value(Kind.SYMBOL, symbol=name) if name in BUILTINS else UNKNOWN

    def _attribute(self, node: ast.Attribute) -> Value:
        base = self.value(node.value)
        found = self.attribute(base, node.attr, node)
        if found.path and self.mode in (Mode.REGION, Mode.HOST) and isinstance(node.ctx, ast.Load):
            self.emit(events.Read(node, self.place(), found.path, found))
        return found

    def _subscript(self, node: ast.Subscript) -> Value:
        base = self.value(node.value)
        index, bounds = self.index(node.slice)
        if isinstance(node.ctx, ast.Load):
            self.emit(events.Index(node, self.place(), base, index, bounds))
        return self.element(base, index, node.slice)

    def index(self, node: ast.expr) -> tuple[Value, list[Value]]:
        """The value of an index, and the values of all slice bounds in it."""
        bounds: list[Value] = []
        parts = node.elts if isinstance(node, ast.Tuple) else [node]
        values = []
        for part in parts:
            if isinstance(part, ast.Slice):
                bounds += [self.value(bound) for bound in (part.lower, part.upper, part.step) if bound is not None]
                values.append(CONSTANT)
            else:
                values.append(self.value(part))
        return (container(*values) if isinstance(node, ast.Tuple) else values[0]), bounds

    def element(self, base: Value, index: Value, node: ast.expr) -> Value:
        """What a subscript of ``base`` gives."""
        if base.is_tensor:
            members = index.items if index.items is not None and isinstance(node, ast.Tuple) else (index,)
            if any(member.is_tensor for member in members):
                return replace(base, path="", made="index", fresh=self.captured, partial=False, output=False)
            return base if isinstance(node, ast.Constant) and node.value is ... else replace(base, partial=True)
        if base.kind is Kind.BUFFERS and isinstance(index.constant, str):
            return self.attribute(base, index.constant, node)
        if base.kind is Kind.BUFFERS:
            return replace(DEVICE, path=f"{base.path}.?")
        if base.kind is Kind.CONTAINER:
            if (
                base.items is not None
                and isinstance(index.constant, int)
                and -len(base.items) <= index.constant < len(base.items)
            ):
                return base.items[index.constant]
            found = base.element or UNKNOWN
            return replace(found, path=f"{base.path}[]") if base.path else found
        if base.kind in (Kind.VARYING, Kind.READ):
            return replace(base, path="")
        if base.kind is Kind.CONSTANT:
            return index if index.varies else CONSTANT
        return Value(path=f"{base.path}[]" if base.path else "", symbol="[]", bound=base)

    def _binop(self, node: ast.BinOp) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        if left.is_tensor or right.is_tensor:
            kind = Kind.DEVICE if Kind.DEVICE in (left.kind, right.kind) else Kind.HOST
            result = Value(
                kind,
                boolean=left.boolean and right.boolean,
                fresh=self.captured,
                made="operator",
                sentinel=(left.sentinel or right.sentinel) and isinstance(node.op, (ast.FloorDiv, ast.Mod)),
            )
        elif left.kind is Kind.CONTAINER and right.kind is Kind.CONTAINER and isinstance(node.op, ast.Add):
            result = join(left, right)
        else:
            result = tainted([left, right]) or (
                CONSTANT if left.kind is Kind.CONSTANT and right.kind is Kind.CONSTANT else UNKNOWN
            )
        self.emit(events.Binary(node, self.place(), left, right, result))
        return result

    def _unaryop(self, node: ast.UnaryOp) -> Value:
        operand = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            self.emit(events.Test(node, self.place(), operand, "not"))
            return CONSTANT if operand.is_tensor else replace(operand, path="", constant=None)
        if isinstance(node.op, ast.USub) and isinstance(operand.constant, (int, float)):
            return constant(-operand.constant)
        if operand.is_tensor:
            return replace(operand, path="", fresh=self.captured, made="operator", sentinel=False)
        return replace(operand, path="")

    def _boolop(self, node: ast.BoolOp) -> Value:
        values = []
        for number, operand in enumerate(node.values):
            values.append(self.value(operand))
            if number < len(node.values) - 1:
                self.emit(
                    events.Test(operand, self.place(), values[-1], "and" if isinstance(node.op, ast.And) else "or")
                )
        return tainted(values) or join_all(values)

    def _compare(self, node: ast.Compare) -> Value:
        values = [self.value(node.left), *(self.value(item) for item in node.comparators)]
        if all(isinstance(operator, (ast.Is, ast.IsNot)) for operator in node.ops):
            return CONSTANT
        if any(isinstance(operator, (ast.In, ast.NotIn)) for operator in node.ops):
            if values[0].on_device and values[-1].kind in (Kind.CONTAINER, Kind.DEVICE):
                self.emit(events.Test(node, self.place(), values[0], "in"))
                return CONSTANT
            return tainted(values) or CONSTANT
        if any(value.is_tensor for value in values):
            kind = Kind.DEVICE if any(value.on_device for value in values) else Kind.HOST
            result = Value(kind, boolean=True, fresh=self.captured, made="comparison")
            for other in values[1:]:
                self.emit(events.Binary(node, self.place(), values[0], other, result))
            return result
        return tainted(values) or (CONSTANT if all(value.kind is Kind.CONSTANT for value in values) else UNKNOWN)

    def _ifexp(self, node: ast.IfExp) -> Value:
        test = self.value(node.test)
        arms = [self.value(node.body), self.value(node.orelse)]
        self.emit(events.Test(node, self.place(), test, "if", (arms[0].on_device, arms[1].on_device)))
        return join_all(arms)

    def _tuple(self, node: ast.Tuple | ast.List) -> Value:
        if any(isinstance(item, ast.Starred) for item in node.elts):
            return replace(container(*[self.value(item) for item in node.elts]), items=None)
        return container(*[self.value(item) for item in node.elts])

    def _list(self, node: ast.List) -> Value:
        return replace(self._tuple(node), made="list")

    def _set(self, node: ast.Set) -> Value:
        return replace(container(*[self.value(item) for item in node.elts]), items=None)

    def _dict(self, node: ast.Dict) -> Value:
        for key in node.keys:
            if key is not None:
                self.value(key)
        values = [self.value(item) for item in node.values]
        return replace(container(*values), items=None)

    def _starred(self, node: ast.Starred) -> Value:
        return self.iterated(self.value(node.value))

    def iterated(self, value: Value) -> Value:
        """What iterating over a value gives."""
        if value.kind is Kind.CONTAINER:
            found = value.element or UNKNOWN
            return found.at(f"{value.path}[]") if found.is_tensor and value.path and not found.path else found
        if value.is_tensor:
            return replace(value, partial=True)
        if value.kind in (Kind.VARYING, Kind.READ, Kind.CONSTANT):
            return replace(value, path="", constant=None)
        return UNKNOWN

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Value:
        saved = dict(self.frame.env)
        self._generators(node.generators)
        element = self.value(node.elt)
        self.frame.env.clear()
        self.frame.env.update(saved)
        return Value(Kind.CONTAINER, element=element, made="list" if isinstance(node, ast.ListComp) else "")

    _listcomp = _setcomp = _generatorexp = _comprehension

    def _dictcomp(self, node: ast.DictComp) -> Value:
        saved = dict(self.frame.env)
        self._generators(node.generators)
        self.value(node.key)
        element = self.value(node.value)
        self.frame.env.clear()
        self.frame.env.update(saved)
        return Value(Kind.CONTAINER, element=element)

    def _generators(self, generators: list[ast.comprehension]) -> None:
        for generator in generators:
            source = self.value(generator.iter)
            self.emit(events.Loop(generator.iter, self.place(), source, works=self.captured))
            self.bind(generator.target, self.iterated(source))
            for condition in generator.ifs:
                self.emit(events.Test(condition, self.place(), self.value(condition), "if"))

    def _joinedstr(self, node: ast.JoinedStr) -> Value:
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self.emit(events.Format(part, self.place(), self.value(part.value)))
        return CONSTANT

    def _namedexpr(self, node: ast.NamedExpr) -> Value:
        found = self.value(node.value)
        self.bind(node.target, found)
        return found

    def _lambda(self, node: ast.Lambda) -> Value:
        function = ast.FunctionDef(
            name="<lambda>", args=node.args, body=[ast.copy_location(ast.Return(node.body), node)], decorator_list=[]
        )
        ast.copy_location(function, node)
        ast.fix_missing_locations(function)
        made = FunctionInfo(self.frame.module, function, None)
        self.closures[id(made)] = (made, self.frame)
        return Value(Kind.SYMBOL, symbol="<lambda>", definition=made)

    def _await(self, node: ast.Await) -> Value:
        return self.value(node.value)


BUILTINS = frozenset(
    [
        "int",
        "float",
        "bool",
        "complex",
        "str",
        "repr",
        "format",
        "len",
        "max",
        "min",
        "any",
        "all",
        "sorted",
        "sum",
        "abs",
        "round",
        "print",
        "range",
        "list",
        "tuple",
        "dict",
        "set",
        "zip",
        "enumerate",
        "isinstance",
        "getattr",
        "setattr",
        "hasattr",
        "super",
        "map",
        "filter",
        "reversed",
        "iter",
        "next",
        "type",
        "id",
        "hash",
        "divmod",
        "pow",
        "slice",
        "issubclass",
        "callable",
        "vars",
        "dir",
        "input",
        "open",
        "bytes",
        "bytearray",
        "frozenset",
        "object",
        "staticmethod",
        "classmethod",
        "property",
    ]
)
