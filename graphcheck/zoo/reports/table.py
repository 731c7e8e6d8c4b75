"""The table of the public reports: number, title, cause, and how graphcheck finds it."""

from __future__ import annotations

from graphcheck.catalogue.reports import REPORTS
from graphcheck.zoo.reports import ELSEWHERE, STATIC, ZOO

_HEAD = """\
# Public reports, and how graphcheck finds them

Each row is a public report of code in a CUDA graph going wrong. Where one emulated device can show it, it is rebuilt in
small in `graphcheck/zoo/reports`: a planted component that does what the reported code did, and a clean twin with the
report's fix. The code is the cause that the report names.

- **fuzz**: `graphcheck fuzz` on the planted component leads with that code, and is silent on the twin.
- **lint**: the defect shows in the source only.
- **elsewhere**: cannot be rebuilt on one emulated device.
"""


def number_of(name: str) -> str:
    """The report's number from the name of an entry: ``b001-...`` gives ``B001``."""
    return name.split("-", 1)[0].upper()


def found() -> dict[str, list[tuple[str, str]]]:
    """By report: the code and how it is found, once for each list that has it."""
    rows: dict[str, list[tuple[str, str]]] = {number: [] for number in REPORTS}
    for entry in ZOO:
        rows[number_of(entry.name)].append((entry.code, f"fuzz: `{entry.name}`"))
    for snippet in STATIC:
        rows[number_of(snippet.name)].append((snippet.code, f"lint: {snippet.mechanism}"))
    for number, (code, reason) in ELSEWHERE.items():
        rows[number].append((code, f"elsewhere: {reason}"))
    return rows


def table() -> str:
    """The document, Markdown."""
    rows = found()
    counts = {
        way: sum(how.startswith(f"{way}:") for row in rows.values() for _, how in row)
        for way in ("fuzz", "lint", "elsewhere")
    }
    lines = [
        _HEAD,
        f"{len(REPORTS)} reports: {', '.join(f'{count} {way}' for way, count in counts.items())}.",
        "",
        "| report | what happened | code | how it is found |",
        "| --- | --- | --- | --- |",
    ]
    for number, source in REPORTS.items():
        for code, how in rows[number]:
            lines.append(f"| {number} | [{source.title}]({source.url}) | {code} | {how} |")
    return "\n".join(lines) + "\n"
