"""Serving traces: read with line numbers, simulated like an engine, turned into plans of consecutive steps."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

from graphcheck.errors import MalformedFile
from graphcheck.fuzzer import fuzz
from graphcheck.trace import Engine, Request, read, simulate, trace_plans
from msa.component import COMPONENTS

ENGINE = Engine(rows=3, qo_len=4, page=16, capacity=128)
REQUESTS = [Request(5 + 37 * number % 90, 3 + number % 11) for number in range(40)] + [Request(500, 3)]


def test_steps_grow_join_leave_and_never_share_a_page() -> None:
    steps = list(simulate(REQUESTS, ENGINE))
    assert sum(step.joined for step in steps) == 40
    assert {step.joined > 0 for step in steps} == {True, False}
    assert any(step.left for step in steps) and any(step.crossed for step in steps)
    for step in steps:
        held = [page for row in step.pages for page in row]
        assert len(held) == len(set(held))
        assert 1 <= len(step.kv_lens) <= ENGINE.rows
        for length, pages, kept in zip(step.kv_lens, step.pages, step.accepted, strict=True):
            assert length <= ENGINE.capacity + ENGINE.qo_len
            assert (len(pages) - 1) * ENGINE.page < length <= len(pages) * ENGINE.page
            assert 1 <= kept <= ENGINE.qo_len
    for before, after in pairwise(steps):
        if not after.left and not after.joined:
            grown = [now - then for then, now in zip(before.kv_lens, after.kv_lens, strict=True)]
            assert grown == list(after.accepted)


def test_the_same_seed_simulates_the_same_steps() -> None:
    assert list(simulate(REQUESTS, ENGINE, 3)) == list(simulate(REQUESTS, ENGINE, 3))
    assert list(simulate(REQUESTS, ENGINE, 3)) != list(simulate(REQUESTS, ENGINE, 4))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "lacks the column"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no request"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,3\n1,0,3\n", "line 3"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2\n", "line 2"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n1,x,3\n", "'x'"),
    ],
)
def test_a_malformed_trace_is_refused_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(MalformedFile, match=words):
        read(path)


def test_the_decode_driver_goes_through_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = "\n".join(f"{number},{request.context},{request.generated}" for number, request in enumerate(REQUESTS))
    path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}\n")
    component, plans, summary = trace_plans(COMPONENTS["decode"](), path)
    assert (summary.offered, summary.refused) == (41, 0)
    assert component.trace_engine().capacity >= 503  # type: ignore[attr-defined]
    report = fuzz(component, plans=plans, backend="emulator", examples=4, seed=1)
    assert report.exit_code == 0, report.targets[0].findings
    assert report.targets[0].counts.replays >= 12


@pytest.mark.skipif("GRAPHCHECK_TRACES" not in os.environ, reason="GRAPHCHECK_TRACES names no folder of traces")
def test_real_traces_are_served_with_few_refusals() -> None:
    paths = sorted(Path(os.environ["GRAPHCHECK_TRACES"]).glob("*.csv"))
    assert paths
    for path in paths:
        component, plans, summary = trace_plans(COMPONENTS["decode"](), path)
        if "conv" in path.name:
            assert summary.refused <= 0.05 * summary.offered
            assert fuzz(component, plans=plans, backend="emulator", examples=3, seed=1).exit_code == 0
