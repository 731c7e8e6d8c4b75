"""What is linted and what is reported: options, and ``[tool.graphcheck]`` in pyproject.toml."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphcheck.errors import UsageError
from graphcheck.lint.rules import CODES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_KNOWN = ("select", "ignore", "exclude")


@dataclass(frozen=True)
class Settings:
    """Which codes are reported, and which files are left out.

    Args:
        select: codes or prefixes; everything if empty.
        ignore: codes or prefixes that are left out; wins over ``select``.
        exclude: patterns of paths relative to ``root``, such as ``third_party/*`` or ``*_pb2.py``.
        root: where the patterns begin.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    root: Path = Path()

    def reports(self, code: str) -> bool:
        """Whether a code is reported."""
        chosen = not self.select or code.startswith(self.select)
        return chosen and not (self.ignore and code.startswith(self.ignore))

    def excludes(self, path: Path) -> bool:
        """Whether a file or folder is left out."""
        try:
            relative = path.resolve().relative_to(self.root.resolve()).as_posix()
        except ValueError:
            relative = path.as_posix()
        return any(
            fnmatch.fnmatch(relative, pattern) or fnmatch.fnmatch(relative, pattern.rstrip("/") + "/*")
            for pattern in self.exclude
        )


def codes(given: Iterable[str], where: str) -> tuple[str, ...]:
    """Codes or prefixes, in capitals.

    Raises:
        UsageError: one of them matches no code that lint can report.
    """
    found = []
    for text in given:
        for part in text.split(","):
            code = part.strip().upper()
            if not code:
                continue
            if not any(known.startswith(code) for known in CODES):
                raise UsageError(
                    f"{where}: lint has no code {part.strip()!r}; give codes or prefixes such as GC102 or GC1"
                )
            found.append(code)
    return tuple(found)


def load(start: Path, select: Iterable[str] = (), ignore: Iterable[str] = ()) -> Settings:
    """The settings of the nearest pyproject.toml above ``start`` that has ``[tool.graphcheck]``, with options over it.

    Raises:
        UsageError: the file is malformed, or an option names an unknown code.
    """
    chosen, left_out = codes(select, "--select"), codes(ignore, "--ignore")
    folder = start.resolve() if start.is_dir() else start.resolve().parent
    for parent in (folder, *folder.parents):
        path = parent / "pyproject.toml"
        table = _table(path) if path.is_file() else None
        if table is not None:
            return Settings(
                chosen or codes(table.get("select", ()), str(path)),
                (*codes(table.get("ignore", ()), str(path)), *left_out),
                tuple(table.get("exclude", ())),
                parent,
            )
    return Settings(chosen, left_out, (), folder)


def _table(path: Path) -> dict[str, Any] | None:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UsageError(f"{path} cannot be read ({error}); correct it") from error
    tool = data.get("tool")
    table = tool.get("graphcheck") if isinstance(tool, dict) else None
    if table is None:
        return None
    if not isinstance(table, dict):
        raise UsageError(f"{path}: tool.graphcheck must be a table")
    for key, value in table.items():
        if key not in _KNOWN:
            raise UsageError(f"{path}: [tool.graphcheck] has no setting {key!r}; known: {', '.join(_KNOWN)}")
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise UsageError(f"{path}: [tool.graphcheck] {key} must be a list of strings, got {value!r}")
    return table
