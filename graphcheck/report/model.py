"""The report of one run: environment, active checks and, for each target, verdict, rungs, findings and counts."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from graphcheck.finding import RUNGS, Finding, RungStatus, Severity, Verdict

SCHEMA = "graphcheck-report/1"


@dataclass
class KeyCounts:
    """How much was done for one graph key.

    Args:
        plans: plans in which cases of that key were drawn for a replay.
        captures, replays: of graphs of that key.
    """

    plans: int = 0
    captures: int = 0
    replays: int = 0


@dataclass
class Counts:
    """How much was done.

    Args:
        plans: plans run while searching (shrinking and attribution not counted).
        captures: graphs captured.
        replays: replays compared with the eager arm.
        refused: cases that the component refused.
        cases: cases staged, refused ones included.
        compared_bytes: bytes compared bit for bit.
        shrinks: plans run while shrinking.
        requests: requests that a trace offered; refused_requests: those that the capacity could not hold.
        keys: the counts of each graph key, by its text.
    """

    plans: int = 0
    captures: int = 0
    replays: int = 0
    refused: int = 0
    cases: int = 0
    compared_bytes: int = 0
    shrinks: int = 0
    requests: int = 0
    refused_requests: int = 0
    keys: dict[str, KeyCounts] = field(default_factory=dict)

    def add(self, other: Counts) -> None:
        """Add another count to this one, in place."""
        for name, value in vars(other).items():
            if name != "keys":
                setattr(self, name, getattr(self, name) + value)
        for key, theirs in other.keys.items():
            ours = self.keys.setdefault(key, KeyCounts())
            ours.plans += theirs.plans
            ours.captures += theirs.captures
            ours.replays += theirs.replays


@dataclass
class TargetReport:
    """What came of one target.

    Args:
        target: as the user named it.
        backend: ``"cuda"`` or ``"emulator"``.
        verdict: fail if there is an error among the findings, not run if a rung that was asked for could not run.
        rungs: status of each rung.
        findings: causes before symptoms.
        counts: how much was done.
        plan: the shrunk failing plan as JSON, if there is one.
        repro: the file that holds it, if one was written.
        seconds: wall time by phase.
        stopped: why the search ended early (``"interrupted"``, ``"time"``), else empty.
    """

    target: str
    backend: str
    verdict: Verdict = Verdict.NOT_RUN
    rungs: dict[str, RungStatus] = field(default_factory=lambda: dict.fromkeys(RUNGS, RungStatus.NOT_RUN))
    findings: list[Finding] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    plan: dict[str, Any] | None = None
    repro: Path | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    stopped: str = ""

    @property
    def errors(self) -> list[Finding]:
        """The findings that deny exit code 0."""
        return [finding for finding in self.findings if finding.severity is Severity.ERROR]

    def conclude(self) -> None:
        """Set the verdict from findings and rungs."""
        if self.errors:
            self.verdict = Verdict.FAIL
        elif RungStatus.NOT_RUN in self.rungs.values():
            self.verdict = Verdict.NOT_RUN
        else:
            self.verdict = Verdict.PASS

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "backend": self.backend,
            "verdict": self.verdict.value,
            "rungs": {rung: status.value for rung, status in self.rungs.items()},
            "findings": [finding.to_json() for finding in self.findings],
            "counts": asdict(self.counts),
            "plan": self.plan,
            "repro": str(self.repro) if self.repro is not None else None,
            "stopped": self.stopped,
            "timings": {phase: round(seconds, 3) for phase, seconds in self.seconds.items()},
        }


@dataclass
class Report:
    """One run of `check`, `fuzz` or `replay` over one or more targets.

    Args:
        command: what was asked, as one line.
        environment: versions, devices and the active checks of this machine.
        targets: one entry a target, in the order asked.
    """

    command: str
    environment: dict[str, Any]
    targets: list[TargetReport] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        """The findings of all targets."""
        return [finding for target in self.targets for finding in target.findings]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict among the targets; not run where there is none."""
        verdicts = {target.verdict for target in self.targets}
        for verdict in (Verdict.FAIL, Verdict.NOT_RUN):
            if verdict in verdicts or not verdicts:
                return verdict if verdicts else Verdict.NOT_RUN
        return Verdict.PASS

    @property
    def exit_code(self) -> int:
        """0 clean, 1 findings, 3 something that was asked for did not run."""
        return {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.NOT_RUN: 3}[self.verdict]

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "command": self.command,
            "environment": self.environment,
            "verdict": self.verdict.value,
            "targets": [target.to_json() for target in self.targets],
        }

    def write(self, path: Path) -> None:
        """Write the report as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")
