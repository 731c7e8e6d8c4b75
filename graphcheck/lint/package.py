"""The linted tree: modules, functions and classes by their dotted names, and what imports make of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from graphcheck.lint.source import Source, read

Function = ast.FunctionDef | ast.AsyncFunctionDef


class FunctionInfo:
    """A function of the linted tree, with the class and module that it stands in."""

    def __init__(self, module: ModuleInfo, node: Function, owner: ClassInfo | None, prefix: str = "") -> None:
        self.module = module
        self.node = node
        self.owner = owner
        self.name = node.name
        self.qualname = f"{owner.name}.{node.name}" if owner is not None else f"{prefix}{node.name}"

    def decorator_names(self) -> Iterator[tuple[str, ast.expr]]:
        """Dotted name of each decorator, with its node."""
        for node in self.node.decorator_list:
            name = self.module.dotted(node.func if isinstance(node, ast.Call) else node)
            if name:
                yield name, node


class ClassInfo:
    """A class of the linted tree."""

    def __init__(self, module: ModuleInfo, node: ast.ClassDef) -> None:
        self.module = module
        self.node = node
        self.name = node.name
        self.methods: dict[str, FunctionInfo] = {}
        self.attributes: dict[str, ast.expr | None] = {}
        self.annotations: dict[str, ast.expr] = {}
        self.attribute_nodes: dict[str, ast.stmt] = {}
        for statement in node.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self.methods[statement.name] = FunctionInfo(module, statement, self)
            elif isinstance(statement, ast.Assign):
                for target in statement.targets:
                    if isinstance(target, ast.Name):
                        self.attributes[target.id] = statement.value
                        self.attribute_nodes[target.id] = statement
            elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                self.annotations[statement.target.id] = statement.annotation
                if statement.value is not None:
                    self.attributes[statement.target.id] = statement.value
                    self.attribute_nodes[statement.target.id] = statement
        self._lineage: list[ClassInfo] | None = None
        self.foreign_bases: list[str] = []

    def lineage(self) -> list[ClassInfo]:
        """The class and its bases within the tree, nearest first; foreign bases stand in ``foreign_bases``."""
        if self._lineage is not None:
            return self._lineage
        self._lineage = [self]
        for base in self.node.bases:
            name = self.module.dotted(base.value if isinstance(base, ast.Subscript) else base)
            found = self.module.package.resolve(name) if name else None
            if isinstance(found, ClassInfo) and found is not self:
                self._lineage += [each for each in found.lineage() if each not in self._lineage]
                self.foreign_bases += found.foreign_bases
            elif name:
                self.foreign_bases.append(name)
        return self._lineage

    def method(self, name: str, after: ClassInfo | None = None) -> FunctionInfo | None:
        """The method that ``name`` means on an instance; with ``after`` what ``super()`` in that class means."""
        lineage = self.lineage()
        if after is not None:
            lineage = lineage[lineage.index(after) + 1 :] if after in lineage else after.lineage()[1:]
        for each in lineage:
            if name in each.methods:
                return each.methods[name]
            held = each.attributes.get(name)
            if isinstance(held, ast.Attribute):
                # ``run = Base.run`` in a class body: another class's method under this name.
                found = self.module.package.resolve(each.module.dotted(held))
                if isinstance(found, FunctionInfo):
                    return found
        return None

    def attribute(self, name: str) -> tuple[ClassInfo, ast.expr | None] | None:
        """The class-level value of an attribute, with the class that gives it."""
        for each in self.lineage():
            if name in each.attributes:
                return each, each.attributes[name]
        return None


class ModuleInfo:
    """A module of the linted tree: what its names mean."""

    def __init__(self, package: Package, source: Source, name: str, is_package: bool) -> None:
        self.package = package
        self.source = source
        self.name = name
        self.imports: dict[str, str] = {}
        self.functions: dict[str, FunctionInfo] = {}
        self.every_class: list[ClassInfo] = []
        self.every_function: list[FunctionInfo] = []
        self.classes: dict[str, ClassInfo] = {}
        self.globals: dict[str, ast.expr] = {}
        self._parent = name if is_package else name.rpartition(".")[0]
        if source.tree is not None:
            self._collect(source.tree.body)

    def _collect(self, body: list[ast.stmt]) -> None:
        for statement in body:
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                self.imports.update(self.imported(statement))
            elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self.functions[statement.name] = FunctionInfo(self, statement, None)
                self.every_function.append(self.functions[statement.name])
            elif isinstance(statement, ast.ClassDef):
                self.classes[statement.name] = ClassInfo(self, statement)
                self.every_class.append(self.classes[statement.name])
                self.every_function += self.classes[statement.name].methods.values()
            elif isinstance(statement, ast.Assign):
                for target in statement.targets:
                    if isinstance(target, ast.Name):
                        self.globals[target.id] = statement.value
            elif isinstance(statement, ast.AnnAssign):
                if isinstance(statement.target, ast.Name) and statement.value is not None:
                    self.globals[statement.target.id] = statement.value
            elif isinstance(statement, (ast.If, ast.Try, ast.With)):
                for part in ("body", "orelse", "finalbody"):
                    self._collect(getattr(statement, part, []))
                for handler in getattr(statement, "handlers", []):
                    self._collect(handler.body)

    def functions_inside(self) -> Iterator[FunctionInfo]:
        """Every function and method, and those defined inside them, in the order of lines."""
        found = list(self.every_function)
        known = {id(function.node) for function in found}
        for function in self.every_function:
            for node in ast.walk(function.node):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and id(node) not in known:
                    known.add(id(node))
                    found.append(FunctionInfo(self, node, None, f"{function.qualname}."))
        yield from sorted(found, key=lambda function: function.node.lineno)

    def imported(self, node: ast.Import | ast.ImportFrom) -> dict[str, str]:
        """Local names that an import statement binds, with their dotted names."""
        if isinstance(node, ast.Import):
            return {
                alias.asname or alias.name.partition(".")[0]: alias.name
                if alias.asname
                else alias.name.partition(".")[0]
                for alias in node.names
            }
        base = node.module or ""
        if node.level:
            parent = self._parent.split(".")
            parent = parent[: len(parent) - (node.level - 1)] if node.level > 1 else parent
            base = ".".join([*parent, base] if base else parent)
        return {alias.asname or alias.name: f"{base}.{alias.name}" for alias in node.names if alias.name != "*"}

    def dotted(self, node: ast.expr) -> str:
        """The dotted name of a plain chain of names, through the imports; empty for anything else."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        if node.id in self.functions or node.id in self.classes:
            first = f"{self.name}.{node.id}"
        else:
            first = self.imports.get(node.id, f"{self.name}.{node.id}" if node.id in self.globals else node.id)
        return ".".join([first, *reversed(parts)])


Definition = FunctionInfo | ClassInfo | ModuleInfo


class Package:
    """Every module that was linted, and those beside them that they import."""

    def __init__(self) -> None:
        self.modules: dict[str, ModuleInfo] = {}
        self.by_path: dict[Path, ModuleInfo] = {}
        self.moves_default_device = False
        self._roots: dict[str, list[Path]] = {}
        self._missing: set[str] = set()

    def add(self, source: Source) -> ModuleInfo:
        """The module of a file, known by its path and by its dotted name."""
        name, root, is_package = locate(source.path)
        module = ModuleInfo(self, source, name, is_package)
        self.moves_default_device |= "set_default_device" in source.text or "set_default_tensor_type" in source.text
        self.by_path[source.path] = module
        self.modules.setdefault(name, module)
        roots = self._roots.setdefault(name.partition(".")[0], [])
        if root not in roots:
            roots.append(root)
        return module

    def find(self, name: str) -> ModuleInfo | None:
        """The module of that dotted name, read on demand if it lies beside a linted one."""
        if name in self.modules:
            return self.modules[name]
        if name in self._missing:
            return None
        for root in self._roots.get(name.partition(".")[0], ()):
            base = root.joinpath(*name.split("."))
            for path in (base.with_suffix(".py"), base / "__init__.py"):
                if path.is_file():
                    try:
                        return self.add(read(path))
                    except OSError:
                        continue
        self._missing.add(name)
        return None

    def resolve(self, name: str, seen: frozenset[str] = frozenset()) -> Definition | None:
        """The definition that a dotted name means, through re-exports; None for what lies outside the tree."""
        if name in seen or len(seen) > 20 or name.partition(".")[0] not in self._roots:
            return None
        module, rest = self._longest(name)
        if module is None:
            return None
        if not rest:
            # What a package's own file imports under a submodule's name hides the submodule.
            parent, _, last = name.rpartition(".")
            around = self.find(parent) if parent else None
            target = around.imports.get(last) if around is not None else None
            if target is not None and target != name:
                return self.resolve(target, seen | {name}) or module
            return module
        head, *tail = rest
        if head in module.functions and not tail:
            return module.functions[head]
        if head in module.classes:
            return module.classes[head].method(tail[0]) if len(tail) == 1 else (None if tail else module.classes[head])
        target = module.imports.get(head)
        if target is None:
            return None
        return self.resolve(".".join([target, *tail]), seen | {name})

    def global_of(self, name: str) -> tuple[ModuleInfo, ast.expr] | None:
        """The module-level value that a dotted name means, with its module."""
        for _ in range(10):
            if name.partition(".")[0] not in self._roots:
                return None
            module, rest = self._longest(name)
            if module is None or len(rest) != 1:
                return None
            if rest[0] in module.globals:
                return module, module.globals[rest[0]]
            if rest[0] not in module.imports:
                return None
            name = module.imports[rest[0]]
        return None

    def _longest(self, name: str) -> tuple[ModuleInfo | None, list[str]]:
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            module = self.find(".".join(parts[:length]))
            if module is not None:
                return module, parts[length:]
        return None, []


def locate(path: Path) -> tuple[str, Path, bool]:
    """Dotted name of a file, the folder that its top package lies in, and whether it is a package's own file."""
    folder = path.parent
    parts = [] if path.name == "__init__.py" else [path.stem]
    while (folder / "__init__.py").is_file() and folder.name:
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts) or path.parent.name, folder, path.name == "__init__.py"
