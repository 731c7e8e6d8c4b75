"""A component that brings the process down is found, shrunk and reported, and the run goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_one_run_reports_three_crashes_and_passes_the_fourth(tmp_path: Path) -> None:
    """Expected: exit 1; each crash shrunk to one row of 13 tokens with its repro file; the last target passes."""
    names = ("ReadsOutOfBounds", "Hangs", "RunsOutOfMemory", "Finishes")
    targets = [f"{HERE / 'crashing.py'}:{name}" for name in names]
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "graphcheck", "fuzz", *targets, "--backend", "cuda", "--examples", "30"]
    command += ["--seed", "1", "--plan-limit", "60", "--json", str(report), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parents[1], check=False)
    assert done.returncode == 1, done.stderr
    found = {entry["target"].rpartition(":")[2]: entry for entry in json.loads(report.read_text())["targets"]}
    codes = {name: [finding["code"] for finding in entry["findings"]][:1] for name, entry in found.items()}
    assert codes["ReadsOutOfBounds"] == ["GC706"]
    assert codes["Hangs"] == ["GC706"]
    assert codes["RunsOutOfMemory"] == ["GC506"]
    assert found["Finishes"]["verdict"] == "pass"
    for name in names[:3]:
        plan = found[name]["plan"]
        lengths = [sorted(case["lens"]["lengths"]) for case in plan["replays"]]
        assert lengths == [[0, 0, 0, 13]] or max(plan["captures"][0]["lens"]["lengths"]) == 13, (name, plan)
