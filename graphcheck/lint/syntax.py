"""Questions about syntax alone."""

from __future__ import annotations

import ast

from graphcheck.lint.package import FunctionInfo


def loaded(node: ast.expr) -> ast.expr:
    """The same target as an expression that reads it."""
    if isinstance(node, ast.Name):
        return ast.copy_location(ast.Name(node.id, ast.Load()), node)
    if isinstance(node, ast.Attribute):
        return ast.copy_location(ast.Attribute(node.value, node.attr, ast.Load()), node)
    if isinstance(node, ast.Subscript):
        return ast.copy_location(ast.Subscript(node.value, node.slice, ast.Load()), node)
    return node


def type_checking(test: ast.expr) -> bool:
    """Whether a test holds for type checkers only."""
    name = test.id if isinstance(test, ast.Name) else test.attr if isinstance(test, ast.Attribute) else ""
    return name == "TYPE_CHECKING"


def names_loaded(function: FunctionInfo | None) -> set[str]:
    """Names that a function reads anywhere."""
    if function is None:
        return set()
    return {
        node.id for node in ast.walk(function.node) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


def named(node: ast.expr) -> list[str]:
    """Strings of a literal tuple, list, or of the keys of a literal mapping."""
    if isinstance(node, ast.Dict):
        parts: list[ast.expr | None] = list(node.keys)
    elif isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        parts = list(node.elts)
    else:
        parts = []
    return [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def documents(node: ast.stmt) -> bool:
    """Whether a statement is a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
