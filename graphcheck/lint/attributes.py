"""What a dotted name, an attribute or an annotation means."""

from __future__ import annotations

import ast
from abc import abstractmethod
from dataclasses import replace

from graphcheck.lint import operators
from graphcheck.lint.frames import Frame, State
from graphcheck.lint.package import ClassInfo, FunctionInfo, ModuleInfo
from graphcheck.lint.values import CONSTANT, DEVICE, UNKNOWN, Kind, Value, join_all, varying

# Names that say that a host copy of a device tensor stands behind them.
MIRRORS = ("_cpu", "_host", "_on_host")
# How a value is marked that is a part of the case itself, and not measured from one.
PARAMETER = "parameter"
EXTERNAL = ("torch.", "cupy.", "numpy.", "triton.", "cuda.")


class Attributes(State):
    """Resolves names and attributes; expressions build on it."""

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

    def attribute(self, base: Value, name: str, node: ast.AST) -> Value:
        """What ``base.name`` is."""
        path = f"{base.path}.{name}" if base.path else ""
        if base.kind is Kind.SYMBOL:
            return self._member(base, name)
        known = self.heap.get(path) if path else None
        if known is not None:
            return replace(known, sentinel=True) if path in self.sentinels else known
        if base.kind is Kind.BUFFERS and name != "items":
            held = self.log.buffers.get(name, replace(DEVICE, path=path))
            return replace(held, sentinel=path in self.sentinels)
        if base.is_tensor:
            if name in operators.HOST_FACTS:
                return CONSTANT
            if name in ("values", "indices", "grad") or (name in operators.VIEWS and name in ("T", "mT", "H", "data")):
                return replace(base, path=path if name == "grad" else base.path)
            return Value(Kind.SYMBOL, symbol=f".{name}", bound=base)
        if base.kind is Kind.OBJECT:
            return self._instance_attribute(base, name, path, node)
        if base.kind is Kind.VARYING:
            own = base.path == "case"
            sources = frozenset({f"{base.path}.{name}"}) if own else base.sources
            bound = replace(base, bound=None)
            made = PARAMETER if own else ""
            return Value(Kind.VARYING, path=path, sources=sources, symbol=f".{name}", bound=bound, made=made)
        if base.kind in (Kind.READ, Kind.CONSTANT):
            return Value(base.kind, path=path, symbol=f".{name}", bound=replace(base, bound=None))
        if base.kind is Kind.UNKNOWN:
            if name.endswith(MIRRORS):
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
            if name.endswith(MIRRORS):
                return replace(varying(path or name), path=path)
            return Value(path=path, symbol=f".{name}", bound=base)
        if base.sources and found.kind is Kind.CONSTANT:
            found = Value(Kind.VARYING, sources=base.sources)
        elif base.sources and found.element is not None and found.element.kind is Kind.CONSTANT:
            found = Value(Kind.CONTAINER, element=Value(Kind.VARYING, sources=base.sources))
        return replace(found, path=path, sentinel=path in self.sentinels) if path else found

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

    @abstractmethod
    def enter(
        self,
        function: FunctionInfo,
        arguments: list[Value],
        keywords: dict[str, Value],
        bound: Value | None,
        node: ast.AST,
    ) -> Value: ...


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
                    (
                        isinstance(target, ast.Attribute)
                        and isinstance(target.value, ast.Name)
                        and target.value.id == "self"
                    )
                    and isinstance(node, (ast.Assign, ast.AnnAssign))
                    and node.value is not None
                ):
                    known.setdefault(target.attr, (method, node.value))
    owner._assignments = known  # type: ignore[attr-defined]
    return known
