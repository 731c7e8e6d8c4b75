"""What a component can reach: its tensors and its plain Python state, by qualified name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

_DEPTH = 8
_PLAIN = (bool, int, float, str, type(None))


def tensors(root: Any, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor reachable from ``root`` through attributes, mappings and sequences, each object once."""
    for name, value in _walk(root, prefix, set(), 0):
        if isinstance(value, torch.Tensor):
            yield name, value


def nested(root: Any, prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in nested mappings and sequences, by position: one object in two places counts twice."""
    if isinstance(root, torch.Tensor):
        yield prefix, root
    elif isinstance(root, Mapping):
        for key, item in root.items():
            yield from nested(item, f"{prefix}[{key!r}]")
    elif isinstance(root, (list, tuple)):
        for index, item in enumerate(root):
            yield from nested(item, f"{prefix}[{index}]")


def plain_state(root: Any, prefix: str = "") -> dict[str, str]:
    """Numbers, strings, flags and container lengths reachable from ``root``, as text by qualified name."""
    state: dict[str, str] = {}
    for name, value in _walk(root, prefix, set(), 0):
        if isinstance(value, _PLAIN):
            state[name] = repr(value)
        elif isinstance(value, (list, set, dict)):
            state[f"len({name})"] = str(len(value))
    return state


def _walk(value: Any, name: str, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, _PLAIN):
        yield name, value
        return
    if id(value) in seen or depth > _DEPTH:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield name, value
        return
    if isinstance(value, Mapping):
        yield name, value
        for key, item in list(value.items()):
            yield from _walk(item, f"{name}[{key!r}]", seen, depth + 1)
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield name, value
        for index, item in enumerate(list(value)):
            yield from _walk(item, f"{name}[{index}]", seen, depth + 1)
    elif isinstance(value, torch.nn.Module):
        for part in (value._parameters, value._buffers, value._modules):
            for key, item in list(part.items()):
                yield from _walk(item, f"{name}.{key}" if name else key, seen, depth + 1)
        yield from _attributes(value, name, seen, depth, skip=set(torch.nn.Module().__dict__))
    elif _has_state(value):
        yield from _attributes(value, name, seen, depth, skip=set())


def _has_state(value: Any) -> bool:
    """Whether an object's attributes are the user's state: no types, functions, modules or torch's own objects."""
    kind = type(value)
    return (
        hasattr(value, "__dict__")
        and not isinstance(value, type)
        and not callable(value)
        and kind.__module__.split(".")[0] not in ("builtins", "torch", "numpy", "functools")
        and not kind.__module__.startswith("graphcheck.backend")
    ) or (hasattr(value, "__dict__") and callable(value) and hasattr(kind, "forward"))


def _attributes(value: Any, name: str, seen: set[int], depth: int, skip: set[str]) -> Iterator[tuple[str, Any]]:
    for key, item in list(vars(value).items()):
        if key not in skip:
            yield from _walk(item, f"{name}.{key}" if name else key, seen, depth + 1)
