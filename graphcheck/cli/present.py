"""How a report looks on a terminal: header, then for each target its verdict, rungs, findings and repro."""

from __future__ import annotations

import shlex
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from graphcheck.cli.reader import ResultConsole
from graphcheck.finding import Finding, RungStatus, Severity, Verdict
from graphcheck.report import TargetReport

_COLOURS = {
    Verdict.PASS: "bold green",
    Verdict.FAIL: "bold red",
    Verdict.NOT_RUN: "bold yellow",
    RungStatus.PASSED: "green",
    RungStatus.FAILED: "red",
    RungStatus.ABSENT: "dim",
    RungStatus.NOT_RUN: "yellow",
    Severity.ERROR: "bold red",
    Severity.WARNING: "bold yellow",
    Severity.NOTE: "cyan",
}


def console() -> Console:
    """The console for results: stdout, soft-wrapped so that lines can be copied; brackets are text, not markup."""
    return ResultConsole(file=sys.stdout, soft_wrap=True, highlight=False, markup=False, emoji=False)


def show_header(environment: dict[str, Any]) -> None:
    """Versions and active checks, two lines."""
    packages = environment.get("packages", {})
    versions = ", ".join(f"{name} {packages[name]}" for name in ("torch", "triton") if name in packages)
    out = console()
    out.print(Text(f"graphcheck on {environment['backend']} ({environment['device']}), {versions}", style="bold"))
    out.print(Text(f"active: {', '.join(environment['active'])}", style="dim"))


def show_target(entry: TargetReport) -> None:
    """One target: verdict, rungs, counts, findings, plan and the command that runs it again."""
    out = console()
    counts = entry.counts
    verdict = Text(f"\n{entry.verdict.value.upper():8}", style=_COLOURS[entry.verdict])
    verdict.append(f"{entry.target}", style="bold")
    stopped = f", stopped: {entry.stopped}" if entry.stopped else ""
    verdict.append(
        f"  {counts.plans} plans, {counts.captures} captures, {counts.replays} replays, {counts.refused} refused, "
        f"{sum(entry.seconds.values()):.1f} s{stopped}",
        style="dim",
    )
    out.print(verdict)
    for rung, status in entry.rungs.items():
        line = Text(f"        {rung:14}")
        line.append(status.value, style=_COLOURS[status])
        out.print(line)
    if counts.requests:
        share = counts.refused_requests / counts.requests
        out.print(f"        {counts.refused_requests} of {counts.requests} requests of the trace refused ({share:.1%})")
    for finding in entry.findings:
        show_finding(out, finding)
    if entry.plan is not None:
        out.print(Text(f"\n  plan: {_plan(entry.plan)}", style="dim"))
    if entry.repro is not None:
        out.print(f"  again: graphcheck replay {shlex.quote(str(entry.repro))}")


def show_finding(out: Console, finding: Finding) -> None:
    """One finding: code and message, then place, source line, values, advice and evidence."""
    head = Text("\n  ")
    head.append(f"{finding.code} {finding.severity.value}", style=_COLOURS[finding.severity])
    head.append(f": {finding.message}")
    out.print(head)
    if finding.severity is Severity.NOTE:
        if finding.where is not None:
            out.print(Text(f"    at {finding.where}: {finding.where.source}", style="dim"))
        return
    lines = [("at", f"{finding.where}: {finding.where.source}" if finding.where is not None else "")]
    lines += [("in", finding.place), ("expected", finding.expected), ("got", finding.got), ("do", finding.advice)]
    for label, text in lines:
        if text:
            line = Text(f"    {label:9}", style="dim")
            line.append(text, style="default")
            out.print(line)
    for evidence in finding.evidence:
        out.print(Text(f"             {evidence}", style="dim"))


def _plan(plan: dict[str, Any]) -> str:
    from graphcheck.plan import Plan

    made = Plan.from_json(plan)
    captures = "; ".join(map(repr, made.captures))
    replays = "; ".join(map(repr, made.replays))
    return f"{made.warmups} warm-ups, capture {captures}, replay {replays}"
