"""Findings, verdicts and rungs: what graphcheck says about a component."""

from __future__ import annotations

import enum
import linecache
import os
import sys
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

RUNGS = ("determinism", "eager", "reference", "side_effects", "vacuity")
SYMPTOMS = ("GC960", "GC961", "GC962", "GC963", "GC964")


class Severity(str, enum.Enum):
    """Only errors give exit code 1."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Verdict(str, enum.Enum):
    """What a target's run amounts to. *Not run* is never green."""

    PASS = "pass"
    FAIL = "fail"
    NOT_RUN = "not run"


class RungStatus(str, enum.Enum):
    """What became of one rung. *Absent*: the component defines none; only *not run* denies exit 0."""

    PASSED = "passed"
    FAILED = "failed"
    ABSENT = "absent"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Location:
    """A source line of the user's own code."""

    file: str
    line: int
    function: str = ""

    @property
    def source(self) -> str:
        """The text of that line, stripped; empty where the file cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        return f"{_short(self.file)}:{self.line}"

    def to_json(self) -> dict[str, Any]:
        return {"file": _short(self.file), "line": self.line, "function": self.function, "source": self.source}


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, with its place, what was expected against what came, and what to do.

    Args:
        code: the catalogue's code.
        message: what happened, one sentence.
        severity: only errors give exit code 1.
        where: the user's own source line, where one is known.
        place: where it showed: rung, replay number, output, coordinate.
        expected: what should have been there.
        got: what was there.
        advice: what to do.
        evidence: further lines: interventions tried, differences of two records, addresses.
    """

    code: str
    message: str
    severity: Severity = Severity.ERROR
    where: Location | None = None
    place: str = ""
    expected: str = ""
    got: str = ""
    advice: str = ""
    evidence: tuple[str, ...] = field(default=())

    @property
    def is_symptom(self) -> bool:
        """Whether the code names a symptom; causes rank above it."""
        return self.code in SYMPTOMS

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key: errors before warnings before notes, causes before symptoms."""
        order = (Severity.ERROR, Severity.WARNING, Severity.NOTE)
        return (order.index(self.severity), int(self.is_symptom))

    def with_evidence(self, *lines: str) -> Finding:
        """The same finding with further lines of evidence."""
        return replace(self, evidence=(*self.evidence, *lines))

    def to_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "severity": self.severity.value,
            "message": self.message,
            "location": self.where.to_json() if self.where is not None else None,
            "place": self.place,
            "expected": self.expected,
            "got": self.got,
            "advice": self.advice,
            "evidence": list(self.evidence),
        }


def ranked(findings: list[Finding]) -> list[Finding]:
    """Findings without repetitions, errors first and causes before symptoms; otherwise in the order found."""
    seen: dict[tuple[str, str, str, str], Finding] = {}
    for finding in findings:
        seen.setdefault((finding.code, finding.message, str(finding.where), finding.place), finding)
    return sorted(seen.values(), key=lambda finding: finding.rank)


def user_location(frame: FrameType | None = None) -> Location | None:
    """The nearest calling source line outside torch, graphcheck's own machinery and the standard library.

    The zoo and other component code that ships inside the packages counts as the user's own.
    """
    frame = frame if frame is not None else sys._getframe(1)
    while frame is not None:
        if not is_machinery(frame.f_code.co_filename):
            return Location(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None


def exception_location(error: BaseException) -> Location | None:
    """The innermost user line in the traceback of ``error``."""
    found: Location | None = None
    trace = error.__traceback__
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if not is_machinery(filename):
            found = Location(filename, trace.tb_lineno, trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    return found


_PACKAGE = os.path.dirname(os.path.abspath(__file__))
_ZOO = os.path.join(_PACKAGE, "zoo") + os.sep
_STDLIB = os.path.dirname(os.path.abspath(os.__file__))
_LIBRARIES = ("torch", "triton", "cupy", "cupy_backends", "cuda", "hypothesis", "click", "_pytest", "pluggy")
_MACHINERY = tuple(f"{os.sep}{name}{os.sep}" for name in _LIBRARIES)


def is_machinery(filename: str) -> bool:
    """Whether a file belongs to torch, graphcheck's own code or the standard library."""
    if filename.startswith("<"):
        return True
    if filename.startswith(_PACKAGE + os.sep):
        return not filename.startswith(_ZOO)
    packages = f"{os.sep}site-packages{os.sep}"
    if packages in filename:
        return any(part in filename[filename.rindex(packages) + len(packages) - 1 :] for part in _MACHINERY)
    return filename.startswith(_STDLIB)


def _short(path: str) -> str:
    """The path relative to the working directory where it lies below it."""
    here = os.getcwd() + os.sep
    return path[len(here) :] if path.startswith(here) else path
