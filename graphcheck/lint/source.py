"""One source file: its text, its tree, and the findings that its comments suppress."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from dataclasses import dataclass, field
from pathlib import Path

_IGNORE = re.compile(r"#\s*graphcheck:\s*ignore\b(?:\s*\[(?P<codes>[^\]]*)\])?(?P<reason>.*)")


@dataclass
class Suppression:
    """A comment that silences codes on one line.

    Args:
        line: where the comment stands.
        covers: the line of code that it speaks of: its own, or the next one where it stands alone.
        codes: what it silences; prefixes such as ``GC1`` work.
        reason: why; mandatory.
        used: codes that it silenced.
    """

    line: int
    covers: int
    codes: tuple[str, ...]
    reason: str
    used: set[str] = field(default_factory=set)

    def silences(self, code: str, first: int, last: int) -> bool:
        """Whether it speaks of ``code`` in a statement that covers these lines; remembers that it was needed."""
        if not first <= self.covers <= last:
            return False
        matching = [name for name in self.codes if code.startswith(name)]
        self.used.update(matching)
        return bool(matching)


@dataclass
class Source:
    """A file that was read. ``tree`` is None where it cannot be parsed, and ``problem`` then says why.

    Args:
        path: as it will be printed.
        text: decoded source; empty where the file cannot be decoded.
        tree: the module.
        problem: line and words of what keeps it from being parsed.
        suppressions: the comments, in order.
    """

    path: Path
    text: str
    tree: ast.Module | None
    problem: tuple[int, str] | None = None
    suppressions: list[Suppression] = field(default_factory=list)


def read(path: Path) -> Source:
    """The file at ``path``, parsed if it can be.

    Raises:
        OSError: the file cannot be read.
    """
    data = path.read_bytes()
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        return Source(path, "", None, (1, f"not readable as Python source: {error}"))
    source = Source(path, text, None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            source.tree = ast.parse(data)
    except SyntaxError as error:
        source.problem = (error.lineno or 1, error.msg or "invalid syntax")
    except (ValueError, RecursionError, MemoryError) as error:
        source.problem = (1, str(error) or type(error).__name__)
    if source.tree is not None and "graphcheck:" in text:
        source.suppressions = list(_suppressions(text))
    return source


def _suppressions(text: str) -> list[Suppression]:
    """Every suppression comment; strings that only look like one are none."""
    found: list[Suppression] = []
    waiting: list[Suppression] = []
    empty = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    occupied: set[int] = set()
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            line = token.start[0]
            if token.type == tokenize.COMMENT:
                match = _IGNORE.match(token.string)
                if match is None:
                    continue
                codes = tuple(code.strip().upper() for code in (match["codes"] or "").split(",") if code.strip())
                made = Suppression(line, line, codes, match["reason"].strip(" \t:-"))
                found.append(made)
                if line not in occupied:
                    waiting.append(made)
            elif token.type not in empty:
                for alone in waiting:
                    alone.covers = line
                waiting.clear()
                occupied.update(range(line, token.end[0] + 1))
    except (tokenize.TokenError, SyntaxError):
        return found
    return found
