"""Targets: from what a user types to a component."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from graphcheck.component import Component
from graphcheck.errors import ComponentRaised, UnknownTarget
from graphcheck.finding import exception_location

GROUP = "graphcheck.components"
PACKAGES = ("msa", "eagle3")

Maker = Callable[[], Component]


def registered() -> dict[str, Any]:
    """Registered components by name: of the packages beside graphcheck, and of installed ones.

    An entry point ``msa = "msa.component:COMPONENTS"`` of group ``graphcheck.components`` names a mapping; its keys are
    registered as ``msa.KEY``.
    """
    found: dict[str, Any] = {}
    for prefix, mapping in _mappings():
        found.update({f"{prefix}.{key}": maker for key, maker in mapping.items()})
    return dict(sorted(found.items()))


def _mappings() -> Iterator[tuple[str, Mapping[str, Any]]]:
    seen = set()
    for point in entry_points(group=GROUP):
        seen.add(point.name)
        try:
            yield point.name, point.load()
        except Exception as error:
            raise ComponentRaised(point.value, "import", error, exception_location(error)) from error
    for package in PACKAGES:
        if package not in seen:
            yield package, _beside(package)


def _beside(package: str) -> Mapping[str, Any]:
    """What ``package.component`` offers, without an installation; nothing where there is no such module."""
    if not package.isidentifier() or importlib.util.find_spec(package) is None:
        return {}
    name = f"{package}.component"
    if importlib.util.find_spec(name) is None:
        return {}
    offered: Mapping[str, Any] = getattr(_from_module(name), "COMPONENTS", {})
    return offered


def resolve(target: str) -> Component:
    """The component that ``target`` names.

    Args:
        target: ``package.module:Class``, ``path.py:Class`` or a registered name.

    Raises:
        UnknownTarget: there is no such thing, or it is no component.
        ComponentRaised: making it raised.
    """
    made = _make(target, _find(target))
    made.graphcheck_name = target
    return made


def _find(target: str) -> Any:
    if ":" not in target:
        known = registered()
        if target in known:
            return known[target]
        package, _, key = target.partition(".")
        offered = _beside(package) if key else {}
        if key in offered:
            return offered[key]
        known.update({f"{package}.{name}": maker for name, maker in offered.items()})
        close = difflib.get_close_matches(target, known, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(known)}"
        raise UnknownTarget(
            f"no registered component {target!r}; {hint} (or give package.module:Class or path.py:Class)"
        )
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise UnknownTarget(
            f"{target!r} names no component; give package.module:Class, path.py:Class or a registered name"
        )
    if not place.endswith(".py") and ("/" in place or Path(place).is_file()):
        raise UnknownTarget(f"{place} is no Python file; give a path that ends in .py, then a colon and the class")
    module = _from_file(place) if place.endswith(".py") else _from_module(place)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        close = difflib.get_close_matches(name, [key for key in vars(module) if not key.startswith("_")], n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise UnknownTarget(f"{place} has no {name!r}{hint}")
    return found


def _from_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            raise UnknownTarget(f"no module {missing!r}; is it installed, or on PYTHONPATH?") from error
        raise UnknownTarget(f"importing {name} failed: {error}; install what it needs") from error
    except Exception as error:
        raise ComponentRaised(name, "import", error, exception_location(error)) from error


def _from_file(place: str) -> Any:
    path = Path(place)
    if not path.is_file():
        raise UnknownTarget(f"no file {place}; give the path of a Python file, then a colon and the class")
    name = f"graphcheck_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise UnknownTarget(f"{place} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ComponentRaised(place, "import", error, exception_location(error)) from error
    finally:
        sys.path.pop(0)
    return module


def _make(target: str, found: Any) -> Component:
    if isinstance(found, Component):
        return found
    if callable(found):
        _without_arguments(target, found)
        try:
            made = found()
        except Exception as error:
            raise ComponentRaised(target, "__init__", error, exception_location(error)) from error
        if isinstance(made, Component):
            return made
    raise UnknownTarget(
        f"{target} is {type(found).__name__}, not a graphcheck.Component, its class or a factory of one"
    )


def _without_arguments(target: str, maker: Callable[..., Any]) -> None:
    """Refuse a maker that needs arguments: there is nobody who could give them."""
    try:
        signature = inspect.signature(maker)
    except (TypeError, ValueError):
        return
    try:
        signature.bind()
    except TypeError as error:
        raise UnknownTarget(
            f"{target} cannot be made ({error}); give a Component, or a class or factory that needs no arguments"
        ) from error
