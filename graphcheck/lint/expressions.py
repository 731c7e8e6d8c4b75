"""Abstract evaluation of expressions: what kind of value each one has, and the events that rules read."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace

from graphcheck.lint import log as events
from graphcheck.lint import operators
from graphcheck.lint.frames import Frame, State
from graphcheck.lint.log import Mode
from graphcheck.lint.package import ClassInfo, FunctionInfo, ModuleInfo
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

_MIRRORS = ("_cpu", "_host", "_on_host")


class Expressions(State):
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
        if found.kind is Kind.UNKNOWN and node.id.endswith(_MIRRORS):
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

    def imported(self, dotted: str) -> Value:
        """The meaning of a dotted name that was imported."""
        definition = None
        if not dotted.startswith(EXTERNAL):
            definition = self.package.resolve(dotted)
            if definition is None:
                found = self.package.global_of(dotted)
                if found is not None:
                    return self.module_global(found[0], dotted.rpartition(".")[2])
        return Value(Kind.SYMBOL, symbol=dotted, definition=definition)

    def module_global(self, module: ModuleInfo, name: str) -> Value:
        """The value of a module-level name, evaluated without entering functions."""
        key = (module.name, name)
        if key not in self.globals:
            self.globals[key] = replace(UNKNOWN, path=f"{module.name}.{name}")
            made = self.shallow(module.globals[name], Frame(module))
            self.globals[key] = replace(made, path=f"{module.name}.{name}")
        return self.globals[key]

    def _attribute(self, node: ast.Attribute) -> Value:
        base = self.value(node.value)
        found = self.attribute(base, node.attr, node)
        if found.path and self.mode in (Mode.REGION, Mode.HOST) and isinstance(node.ctx, ast.Load):
            self.emit(events.Read(node, self.place(), found.path, found))
        return found

    def attribute(self, base: Value, name: str, node: ast.AST) -> Value:
        """What ``base.name`` is."""
        path = f"{base.path}.{name}" if base.path else ""
        if base.kind is Kind.SYMBOL:
            return self._member(base, name)
        if (path and (known := self.heap.get(path))) is not None and path:
            return known
        if base.kind is Kind.BUFFERS and name != "items":
            held = self.log.buffers.get(name, replace(DEVICE, path=path))
            return replace(held, sentinel=path in self.sentinels)
        if base.is_tensor:
            if name in operators.HOST_FACTS:
                return CONSTANT
            if name in ("values", "indices", "grad") or name in operators.VIEWS and name in ("T", "mT", "H", "data"):
                return replace(base, path=path if name == "grad" else base.path)
            return Value(Kind.SYMBOL, symbol=f".{name}", bound=base)
        if base.kind is Kind.OBJECT:
            return self._instance_attribute(base, name, path, node)
        if base.kind is Kind.VARYING:
            sources = frozenset({f"{base.path}.{name}"}) if base.path == "case" else base.sources
            return Value(Kind.VARYING, path=path, sources=sources, symbol=f".{name}", bound=replace(base, bound=None))
        if base.kind in (Kind.READ, Kind.CONSTANT):
            return Value(base.kind, path=path, symbol=f".{name}", bound=replace(base, bound=None))
        if base.kind is Kind.UNKNOWN:
            if name.endswith(_MIRRORS):
                return replace(varying(path or name), path=path)
            return Value(path=path, symbol=f".{name}", bound=base)
        return Value(Kind.SYMBOL, path=path, symbol=f".{name}", bound=base)

    def _member(self, base: Value, name: str) -> Value:
        """An attribute of something imported, of a class or of ``super()``."""
        if isinstance(base.definition, ModuleInfo):
            return self.imported(f"{base.definition.name}.{name}")
        if isinstance(base.definition, ClassInfo):
            owner = base.definition
            if base.symbol == "super":
                method = owner.method(name, after=base.bound.definition if base.bound is not None else None)
                bound = self.frame.self_value
                return Value(Kind.SYMBOL, symbol=f".{name}", definition=method, bound=bound or UNKNOWN)
            method = owner.method(name)
            if method is not None:
                of_class = any(decorator == "classmethod" for decorator, _ in method.decorator_names())
                bound = replace(base, bound=None) if of_class else None
                return Value(Kind.SYMBOL, symbol=f"{base.symbol}.{name}", definition=method, bound=bound)
            held = owner.attribute(name)
            return self.shallow(held[1], Frame(held[0].module)) if held is not None and held[1] is not None else UNKNOWN
        symbol = f"{base.symbol}.{name}"
        if base.definition is None and not base.symbol.startswith("."):
            return self.imported(symbol)
        return Value(Kind.SYMBOL, symbol=symbol, bound=base.bound)

    def _instance_attribute(self, base: Value, name: str, path: str, node: ast.AST) -> Value:
        owner = base.definition
        if not isinstance(owner, ClassInfo):
            if base.symbol.startswith("torch.nn.") and name in ("weight", "bias"):
                return replace(DEVICE, path=path)
            return Value(path=path, symbol=f".{name}", bound=base)
        method = owner.method(name)
        if method is not None:
            decorators = {decorator.rpartition(".")[2] for decorator, _ in method.decorator_names()}
            if decorators & {"property", "cached_property"}:
                return self.enter(method, [], {}, base, node)
            bound = None if "staticmethod" in decorators else base
            return Value(Kind.SYMBOL, symbol=f".{name}", definition=method, bound=bound)
        found = self.initial(owner, name)
        if found.kind is Kind.UNKNOWN:
            if name.endswith(_MIRRORS):
                return replace(varying(path or name), path=path)
            return Value(path=path, symbol=f".{name}", bound=base)
        if base.sources and found.kind is Kind.CONSTANT:
            found = Value(Kind.VARYING, sources=base.sources)
        elif base.sources and found.element is not None and found.element.kind is Kind.CONSTANT:
            found = Value(Kind.CONTAINER, element=Value(Kind.VARYING, sources=base.sources))
        return replace(found, path=path) if path else found

    def initial(self, owner: ClassInfo, name: str) -> Value:
        """What the constructor, an annotation or the class body gives an attribute of a new instance."""
        key = (id(owner), name)
        if key in self.initials:
            return self.initials[key]
        self.initials[key] = UNKNOWN
        found = UNKNOWN
        for each in owner.lineage():
            assigned = assignments(each)
            if name in assigned:
                function, expression = assigned[name]
                frame = Frame(each.module, function, self.parameters(function, None))
                frame.self_value = Value(Kind.OBJECT, definition=owner)
                frame.env.setdefault("self", frame.self_value)
                found = self.shallow(expression, frame)
                break
            if name in each.annotations:
                found = self.annotated(each.annotations[name], each.module)
                if found.kind is not Kind.UNKNOWN:
                    break
            if name in each.attributes:
                found = self.shallow(each.attributes[name], Frame(each.module))
                break
        self.initials[key] = found
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
        narrowed = self.narrowed(node.test, node.body, node.orelse)
        left, right = (self.value(node.body) if narrowed is not False else None), None
        right = self.value(node.orelse) if narrowed is not True else None
        arms = [arm for arm in (left, right) if arm is not None]
        works = any(arm.on_device for arm in arms)
        self.emit(events.Test(node, self.place(), test, "if", (works, works)))
        return join_all(arms)

    def narrowed(self, test: ast.expr, body: ast.expr, orelse: ast.expr) -> bool | None:
        """Whether a test for None is decided by what is known."""
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.comparators[0], ast.Constant):
            if test.comparators[0].value is None and isinstance(test.left, ast.Name):
                if self.lookup(test.left.id).kind in (Kind.DEVICE, Kind.OBJECT, Kind.BUFFERS, Kind.CONTAINER):
                    return None
        return None

    def _tuple(self, node: ast.Tuple | ast.List) -> Value:
        if any(isinstance(item, ast.Starred) for item in node.elts):
            return replace(container(*[self.value(item) for item in node.elts]), items=None)
        return container(*[self.value(item) for item in node.elts])

    _list = _tuple

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
            return value.element or UNKNOWN
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
        return Value(Kind.CONTAINER, element=element)

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

    def annotated(self, node: ast.expr | None, module: ModuleInfo) -> Value:
        """What a type annotation says of a value."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                node = ast.parse(node.value, mode="eval").body
            except (SyntaxError, ValueError):
                return UNKNOWN
        if isinstance(node, ast.BinOp):
            sides = [self.annotated(side, module) for side in (node.left, node.right)]
            known = [side for side in sides if side.kind is not Kind.UNKNOWN]
            return known[0] if len(known) == 1 else join_all(known)
        if isinstance(node, ast.Subscript):
            outer = module.dotted(node.value).rpartition(".")[2]
            inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if outer in ("Optional", "Annotated", "Final", "ClassVar"):
                return self.annotated(inner[0], module)
            if outer.lower() in ("list", "sequence", "tuple", "dict", "mapping", "iterable", "set"):
                many = [part for part in inner if not (isinstance(part, ast.Constant) and part.value is ...)]
                return Value(Kind.CONTAINER, element=self.annotated(many[-1], module) if many else None)
            return UNKNOWN
        name = module.dotted(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""
        if not name:
            return UNKNOWN
        if name in ("torch.Tensor", "torch.nn.Parameter", "cupy.ndarray") or name.rpartition(".")[2] == "Tensor":
            return DEVICE
        if name in ("int", "float", "bool", "str", "torch.dtype", "torch.device"):
            return CONSTANT
        if name in operators.STREAMS:
            return Value(Kind.STREAM)
        if name in operators.EVENTS:
            return Value(Kind.EVENT)
        if name in operators.GRAPHS:
            return Value(Kind.GRAPH)
        if name in ("graphcheck.Buffers", "graphcheck.component.Buffers"):
            return Value(Kind.BUFFERS)
        found = self.package.resolve(name)
        return Value(Kind.OBJECT, definition=found) if isinstance(found, ClassInfo) else UNKNOWN


def assignments(owner: ClassInfo) -> dict[str, tuple[FunctionInfo, ast.expr]]:
    """First assignments to ``self.name`` in a class, the constructor's before those of other methods."""
    known: dict[str, tuple[FunctionInfo, ast.expr]] | None = getattr(owner, "_assignments", None)
    if known is not None:
        return known
    known = {}
    order = sorted(
        owner.methods.values(), key=lambda method: method.name not in ("__init__", "__post_init__", "allocate")
    )
    for method in order:
        for node in ast.walk(method.node):
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AnnAssign)
                else []
            )
            for target in targets:
                if (
                    isinstance(target, ast.Attribute)
                    and isinstance(target.value, ast.Name)
                    and target.value.id == "self"
                ):
                    if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                        known.setdefault(target.attr, (method, node.value))
    owner._assignments = known  # type: ignore[attr-defined]
    return known


BUILTINS = frozenset(
    "int float bool complex str repr format len max min any all sorted sum abs round print range list tuple dict set zip "
    "enumerate isinstance getattr setattr hasattr super map filter reversed iter next type id hash divmod pow slice "
    "issubclass callable vars dir input open bytes bytearray frozenset object staticmethod classmethod property".split()
)
EXTERNAL = ("torch.", "cupy.", "numpy.", "triton.", "cuda.")
