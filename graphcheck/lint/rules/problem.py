"""What a rule reports, and how source is quoted in messages."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from graphcheck.finding import Severity
from graphcheck.lint.log import Event, Place
from graphcheck.lint.package import ModuleInfo


@dataclass(frozen=True)
class Problem:
    """Something wrong at a place.

    Args:
        code: the catalogue's code.
        node: what is wrong.
        module: where it stands.
        place: how the region gets there; None where no event stands behind it.
        message: names the variable and says why a replay goes wrong.
        advice: what to write instead.
        severity: weak rules only warn.
    """

    code: str
    node: ast.AST
    module: ModuleInfo
    place: Place | None
    message: str
    advice: str
    severity: Severity = Severity.ERROR


def problem(
    code: str, event: Event, message: str, advice: str, severity: Severity = Severity.ERROR, node: ast.AST | None = None
) -> Problem:
    """The problem at an event."""
    return Problem(code, node or event.node, event.place.module, event.place, message, advice, severity)


def quoted(node: ast.AST, most: int = 44) -> str:
    """The source of a node on one line, shortened."""
    try:
        text = " ".join(ast.unparse(node).split())
    except (ValueError, RecursionError, AttributeError):
        text = type(node).__name__
    return text if len(text) <= most else text[: most - 3] + "..."


def receiver(node: ast.AST) -> str:
    """The source of what a method is called on."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return quoted(node.func.value)
    return quoted(node)
