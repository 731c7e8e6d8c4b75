"""How findings are printed: text, JSON, GitHub annotations, SARIF 2.1.0."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graphcheck.catalogue import HAZARDS
from graphcheck.finding import Finding, Severity
from graphcheck.lint.run import Result

SCHEMA = "graphcheck-lint/1"
SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}
_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def text(result: Result) -> str:
    """Three lines for a finding at most: what, how the region gets there, what to write instead."""
    lines = []
    for finding, column in zip(result.findings, result.columns, strict=True):
        file, line = _where(finding)
        lines.append(f"{file}:{line}:{column}: {finding.code} {finding.severity.value}: {finding.message}")
        if finding.place:
            lines.append(f"    in {finding.place}")
        if finding.advice:
            lines.append(f"    write: {finding.advice}")
    lines.append(_summary(result))
    return "\n".join(lines)


def _summary(result: Result) -> str:
    counts = [
        (sum(finding.severity is severity for finding in result.findings), severity.value) for severity in Severity
    ]
    found = ", ".join(f"{count} {word}{'s' * (count != 1)}" for count, word in counts if count) or "clean"
    regions = f"{result.regions} captured region{'s' * (result.regions != 1)}"
    return f"{found}: {result.files} file{'s' * (result.files != 1)}, {regions}, {result.suppressed} suppressed"


def as_json(result: Result) -> str:
    """One object: counts, and the findings with column and page of the rule."""
    found = []
    for finding, column in zip(result.findings, result.columns, strict=True):
        file, line = _where(finding)
        found.append(
            {
                "code": finding.code,
                "name": HAZARDS[finding.code].name,
                "severity": finding.severity.value,
                "file": file,
                "line": line,
                "column": column,
                "message": finding.message,
                "reached": finding.place,
                "advice": finding.advice,
            }
        )
    whole = {
        "schema": SCHEMA,
        "files": result.files,
        "regions": result.regions,
        "suppressed": result.suppressed,
        "findings": found,
    }
    return json.dumps(whole, indent=2)


def github(result: Result) -> str:
    """Workflow commands, which GitHub shows at the lines of a pull request."""
    lines = []
    for finding, column in zip(result.findings, result.columns, strict=True):
        file, line = _where(finding)
        where = f"file={_property(file)},line={line},col={column},title={_property(f'graphcheck {finding.code}')}"
        parts = [finding.message, f"in {finding.place}" if finding.place else "", f"write: {finding.advice}"]
        words = "\n".join(part for part in parts if part)
        lines.append(f"::{_COMMANDS[finding.severity]} {where}::{_data(words)}")
    return "\n".join(lines)


def _data(words: str) -> str:
    return words.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(words: str) -> str:
    return _data(words).replace(":", "%3A").replace(",", "%2C")


def sarif(result: Result) -> str:
    """A SARIF 2.1.0 log with one run."""
    codes = sorted({finding.code for finding in result.findings})
    rules = [_rule(code) for code in codes]
    results = []
    for finding, column in zip(result.findings, result.columns, strict=True):
        file, line = _where(finding)
        path = Path(file)
        location: dict[str, Any] = {"uri": path.as_uri() if path.is_absolute() else _relative(path)}
        if not path.is_absolute():
            location["uriBaseId"] = "%SRCROOT%"
        parts = [finding.message, f"Reached: {finding.place}." if finding.place else "", f"Write: {finding.advice}."]
        results.append(
            {
                "ruleId": finding.code,
                "ruleIndex": codes.index(finding.code),
                "level": _LEVELS[finding.severity],
                "message": {"text": " ".join(part for part in parts if part)},
                "locations": [
                    {
                        "physicalLocation": {
                            "artifactLocation": location,
                            "region": {"startLine": line, "startColumn": column},
                        }
                    }
                ],
            }
        )
    driver = {"name": "graphcheck", "rules": rules}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return json.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _rule(code: str) -> dict[str, Any]:
    hazard = HAZARDS[code]
    return {
        "id": code,
        "name": "".join(word.capitalize() for word in hazard.name.replace("-", " ").split()),
        "shortDescription": {"text": hazard.name},
        "fullDescription": {"text": hazard.mechanism},
        "help": {"text": f"{hazard.mechanism} {hazard.symptom} Wrong: {hazard.wrong} Right: {hazard.right}"},
    }


def _relative(path: Path) -> str:
    from urllib.parse import quote

    return quote(path.as_posix())


def _where(finding: Finding) -> tuple[str, int]:
    if finding.where is None:
        return "", 1
    path = Path(finding.where.file)
    here = Path.cwd()
    shown = path.relative_to(here) if path.is_absolute() and here in path.parents else path
    return shown.as_posix(), max(finding.where.line, 1)


FORMATS: dict[str, Callable[[Result], str]] = {"text": text, "json": as_json, "github": github, "sarif": sarif}
