"""Tests that make code run once: for None, for absence, for size."""

from __future__ import annotations

import ast

from graphcheck.lint.log import Event, Guard, Store

_SIZES = ("numel", "shape", "size", "nbytes", "len", "capacity", "element_size")


def absent(guard: Guard) -> str:
    """The source of what a test finds missing where it holds; empty for another test."""
    test, positive = guard.test, guard.positive
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, positive = test.operand, not positive
        if (
            isinstance(test, ast.Call)
            and isinstance(test.func, ast.Name)
            and test.func.id == "hasattr"
            and positive is False
        ):
            name = test.args[1].value if len(test.args) > 1 and isinstance(test.args[1], ast.Constant) else ""
            return f"{ast.unparse(test.args[0])}.{name}" if isinstance(name, str) else ""
        return ast.unparse(test) if not positive and isinstance(test, (ast.Name, ast.Attribute)) else ""
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        right = test.comparators[0]
        if isinstance(right, ast.Constant) and right.value is None:
            missing = isinstance(test.ops[0], (ast.Is, ast.Eq)) is positive
            return ast.unparse(test.left) if missing else ""
        if isinstance(test.ops[0], (ast.In, ast.NotIn)):
            missing = isinstance(test.ops[0], ast.NotIn) is positive
            return ast.unparse(right) if missing else ""
    return ""


def creates_once(event: Store) -> bool:
    """Whether a store fills something only while it is missing."""
    return creating_guard(event) is not None


def creating_guard(event: Store) -> Guard | None:
    """The test for absence that guards a store into what it found missing."""
    stored = event.path.removesuffix("[]")
    for guard in event.place.guards:
        name = absent(guard)
        if not name:
            continue
        if name.removesuffix("[]") == stored or guard.value.path.removesuffix("[]") == stored:
            return guard
        origin = _origin(guard)
        if origin and origin.removesuffix("[]") == stored:
            return guard
    return None


def _origin(guard: Guard) -> str:
    """The path of the value that a test for None looked at."""
    return guard.value.path


def grows(event: Event) -> bool:
    """Whether an event happens only where something is found too small."""
    for guard in event.place.guards:
        test = guard.test
        if isinstance(test, ast.Compare) and any(isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) for op in test.ops):
            named = {part.attr for part in ast.walk(test) if isinstance(part, ast.Attribute)}
            named |= {part.id for part in ast.walk(test) if isinstance(part, ast.Name)}
            if any(size in name for name in named for size in _SIZES):
                return True
    return False
