"""Python state of a component: what a run changes, and how one copy is brought to where another is."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterable
from typing import Any

import torch

_STEP = re.compile(r"\.?([A-Za-z_]\w*)|\[([^\]]*)\]")


def mutated(before: dict[str, str], after: dict[str, str]) -> tuple[str, ...]:
    """Names whose plain value is another one afterwards; names that only one of both has are no plain state."""
    return tuple(name for name, value in before.items() if name in after and after[name] != value)


def advance(target: Any, source: Any, names: Iterable[str]) -> None:
    """Give ``target`` the values that ``source`` has under ``names`` (as `reachable.plain_state` spells them)."""
    for name in names:
        path = _path(name.removeprefix("len(").removesuffix(")"))
        if not path:
            continue
        try:
            value = _walk(source, path)
            owner = _walk(target, path[:-1])
        except (AttributeError, KeyError, IndexError, TypeError):
            continue
        key, attribute = path[-1]
        value = copy.copy(value) if isinstance(value, (list, dict, set)) else value
        if attribute:
            setattr(owner, str(key), value)
        elif isinstance(owner, (list, dict)):
            owner[key] = value


def without_hooks(root: Any) -> list[str]:
    """Take every forward and backward hook off the modules that hang on ``root``; the kinds of module that had one."""
    found = []
    for value in list(vars(root).values()):
        for module in _modules(value):
            tables = [table for name, table in vars(module).items() if name.endswith("_hooks") and table]
            for table in tables:
                table.clear()
            if tables:
                found.append(type(module).__name__)
    return found


def _modules(value: Any) -> Iterable[torch.nn.Module]:
    if isinstance(value, torch.nn.Module):
        return value.modules()
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [module for item in items if isinstance(item, torch.nn.Module) for module in item.modules()]


def _path(name: str) -> list[tuple[Any, bool]]:
    """The steps of a qualified name: key, and whether it is an attribute."""
    steps: list[tuple[Any, bool]] = []
    for attribute, key in _STEP.findall(name):
        if attribute:
            steps.append((attribute, True))
            continue
        try:
            steps.append((ast.literal_eval(key), False))
        except (ValueError, SyntaxError):
            return []
    return steps


def _walk(value: Any, path: list[tuple[Any, bool]]) -> Any:
    for key, attribute in path:
        value = getattr(value, key) if attribute else value[key]
    return value
