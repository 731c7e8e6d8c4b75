"""Python state of a component: what a run changes, and how one copy is brought to where another is."""

from __future__ import annotations

import ast
import copy
import re
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch

Rebound = dict[str, "weakref.ref[torch.Tensor]"]

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
        _assign(owner, *path[-1], copy.copy(value) if isinstance(value, (list, dict, set)) else value)


def rebound(before: Mapping[str, int], now: Iterable[tuple[str, torch.Tensor]]) -> Rebound:
    """Tensor attributes that are other objects than before, held weakly: the region assigned them.

    Args:
        before: identity of each tensor by name, as `identities` gave it.
        now: the tensors by name.
    """
    return {name: weakref.ref(tensor) for name, tensor in now if before.get(name, 0) != id(tensor)}


def identities(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, int]:
    """Which object each name holds."""
    return {name: id(tensor) for name, tensor in tensors}


def rebind(target: Any, tensors: Rebound) -> None:
    """Assign tensors to the attributes of ``target`` again; those that are gone are left out."""
    for name, reference in tensors.items():
        tensor, path = reference(), _path(name)
        if tensor is None or not path:
            continue
        try:
            owner = _walk(target, path[:-1])
        except (AttributeError, KeyError, IndexError, TypeError):
            continue
        _assign(owner, *path[-1], tensor)


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


def _assign(owner: Any, key: Any, attribute: bool, value: Any) -> None:
    if attribute:
        setattr(owner, str(key), value)
    elif isinstance(owner, (list, dict)):
        owner[key] = value


def _walk(value: Any, path: list[tuple[Any, bool]]) -> Any:
    for key, attribute in path:
        value = getattr(value, key) if attribute else value[key]
    return value
