"""The table of docs/msa.md is what the stored results say."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_row_is_a_stored_line() -> None:
    """Expected: a row for each warm bf16 line of the results, with their figures."""
    stored = json.loads((ROOT / "benchmarks/results/h200/msa_decode.json").read_text(encoding="utf-8"))["lines"]
    expected = []
    for line in stored:
        if line["cache"] == "warm" and line["stored"] == "bf16":
            us = {name: f"{stage['us']:.1f}" for name, stage in line["stages"].items()}
            fast = {name: f"{times:.2f}" for name, times in line["times_as_fast"].items()}
            cells = [line["heads"], str(line["batch"]), f"{line['context'] // 1024}K", str(line["qo_len"])]
            cells += [us["score"], us["index"], fast["index"], us["sparse"], fast["sparse"]]
            cells += [us.get("sparse_same", ""), fast.get("sparse_same", ""), fast["sum"], us["layer"]]
            expected.append(cells)
    lines = (ROOT / "docs/msa.md").read_text(encoding="utf-8").splitlines()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith(("| 16/1", "| 64/4"))
    ]
    assert len(rows) == 24 and rows == expected
