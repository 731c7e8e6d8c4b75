"""The benchmark of the decode driver: what it counts and compares; its loop, at tiny sizes.

On a machine with a GPU these run there; elsewhere `test_triton_in_a_child` runs this module in Triton's interpreter.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest
import torch

from msa import Geometry
from msa.geometry import FP8

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("no GPU; test_triton_in_a_child runs these in Triton's interpreter", allow_module_level=True)
pytest.importorskip("triton", reason="the kernels need triton, which is not installed")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "msa_decode.py"
_spec = importlib.util.spec_from_file_location("msa_decode_benchmark", SCRIPT)
bench = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = bench
_spec.loader.exec_module(bench)

torch.set_num_threads(1)
DEVICE = "cpu" if INTERPRETED else "cuda"
LINE = bench.Line("2/1", 2, 96, 2)
TINY = Geometry(
    q_heads=2,
    kv_heads=1,
    index_heads=1,
    head_dim=16,
    page_size=16,
    top_k=4,
    max_batch=2,
    max_pages=6,
    num_pages=12,
    max_seq_len=96,
    dtype=torch.float32,
)
PEERS = json.loads(bench.PEERS.read_text(encoding="utf-8"))


class CountedClock(bench.WallClock):
    """Calls once, and says how many microseconds to believe."""

    def __init__(self) -> None:
        self.calls = 0

    def warm(self, call) -> float:
        self.calls += 1
        call()
        return 2.0

    cold = warm


def test_a_line_is_measured_stage_by_stage():
    clock = CountedClock()
    warm, cold = bench.measure(LINE, TINY, clock, 4000.0, DEVICE)
    assert (warm["cache"], cold["cache"]) == ("warm", "cold") and warm["as_eager"] and cold["as_eager"]
    everything = {"plan", "write", "score", "select", "index", "pair", "layer", "dense", "sum"}
    sparse = {"sparse", "sparse_same", "sparse_partial"}
    assert warm["stages"].keys() == everything | sparse
    assert cold["stages"].keys() == (everything - {"plan", "write", "dense"}) | sparse
    assert clock.calls == 11 + 8
    assert warm["stages"]["sum"] == {"us": 4.0}
    score = warm["stages"]["score"]
    # Keys of 12 pages, queries of four rows, scores of four rows and six pages.
    assert score["bytes"] == 12 * 16 * 16 * 4 + 4 * 16 * 4 + 4 * 6 * 4
    assert score["share"] == pytest.approx(score["bytes"] / 2e-6 / 4000e9, abs=1e-4)


@pytest.mark.parametrize("kind", ["random", "same", "partial"])
def test_lists_are_ascending_with_each_rows_own_page_and_overlap_as_they_say(kind):
    line = bench.Line("64/4", 3, 8192, 4)
    geometry = line.geometry()
    ids = bench.selections(geometry, line)[kind].view(3, 4, 4, 16)
    assert bool((ids.diff(dim=-1) > 0).all()) and bool((ids[..., -1] == 63).all()) and int(ids.min()) >= 0
    shared = {
        (b, h): len(set.intersection(*(set(ids[b, t, h].tolist()) for t in range(4))))
        for b in range(3)
        for h in range(4)
    }
    assert {"same": min(shared.values()) == 16, "partial": min(shared.values()) >= 12, "random": True}[kind]
    if kind != "same":
        assert max(shared.values()) < 16
    union = sum(len(set(ids[b, :, h].flatten().tolist())) for b in range(3) for h in range(4))
    small = 2 * 12 * 64 * 128 * 2 + 12 * 4 * 16 * 4
    assert bench.least_bytes(geometry, line, ids.flatten(0, 1))["sparse"] == union * 2 * 128 * 128 * 2 + small


def test_fp8_caches_need_half_the_bytes():
    ids = torch.zeros(4, 1, 4, dtype=torch.int32)
    plain, half = (
        bench.least_bytes(dataclasses.replace(TINY, dtype=torch.bfloat16, kv_dtype=kept, index_dtype=kept), LINE, ids)
        for kept in (None, FP8)
    )
    assert plain["dense"] - half["dense"] == 2 * 12 * 16 * 16
    assert plain["score"] - half["score"] == 12 * 16 * 16


def test_a_record_stands_beside_the_best_of_its_peers():
    stages = {"score": {"us": 2.0}, "index": {"us": 4.0}, "sparse": {"us": 5.0}, "sum": {"us": 9.0}}
    record = {"heads": "16/1", "batch": 8, "context": 8192, "qo_len": 1, "stored": "bf16", "cache": "warm"}
    found = bench.beside({**record, "stages": stages}, PEERS)
    assert found["best_peer"] == {"score": 5.95, "index": 13.34, "sparse": 7.23, "sum": 20.57}
    assert found["times_as_fast"] == {"score": 2.975, "index": 3.335, "sparse": 1.446, "sum": 2.286}
    alone = bench.beside({**record, "batch": 7, "stages": stages}, PEERS)
    assert alone["peers"] == alone["best_peer"] == alone["times_as_fast"] == {}
    text = bench.table([found, alone])
    assert len({len(line) for line in text.splitlines()}) == 1 and "13.34" not in text and "4.00 x3.33" in text


def test_the_whole_grid_is_asked_for_and_every_warm_line_has_peers():
    lines = list(bench.grid(quick=False, stored="bf16"))
    assert len(lines) == len(set(lines)) == 2 * 3 * 2 * 2
    for line in lines:
        record = {**dataclasses.asdict(line), "cache": "warm", "stages": {}}
        assert "index" in bench.beside(record, PEERS)["best_peer"], line
    fp8 = [line for line in bench.grid(quick=False, stored="both") if line.stored == "fp8"]
    assert {line.batch for line in fp8} == {64} and fp8[0].geometry().stored_kv is FP8
    assert {line.context for line in bench.grid(quick=True, stored="bf16")} == {8192}


def test_the_read_kernel_reads_everything_once():
    kernel = bench._read
    source, sums = torch.arange(64.0, device=DEVICE), torch.zeros(2, device=DEVICE)
    kernel[(2,)](source, sums, 64, BLOCK=16)
    assert sums.tolist() == [sum(range(16)) + sum(range(32, 48)), sum(range(16, 32)) + sum(range(48, 64))]
    assert bench.read_limit(CountedClock(), DEVICE, 1024, (16, 32)) == pytest.approx(1024 / 2.0 / 1e3)


def test_without_a_gpu_it_says_so(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench.main([]) == 3
    assert "there is none" in capsys.readouterr().err
