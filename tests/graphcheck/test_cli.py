"""The command line: exit codes, one sentence for bad input, no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from graphcheck.catalogue import HAZARDS, lookup
from graphcheck.cli import cli, main
from graphcheck.errors import UnknownTarget

ROOT = Path(__file__).parents[2]

BROKEN = """
import torch
from graphcheck import Buffers, Component, case, lengths

class Raises(Component):
    def allocate(self, device):
        raise RuntimeError("no memory for this")
    def cases(self):
        return case(lens=lengths(2))

class Hides(Component):
    def allocate(self, device):
        return {"x": torch.zeros(2, device=device)}
    def cases(self):
        return case(lens=lengths(2))

NotOne = 3
"""


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


@pytest.fixture
def broken(tmp_path: Path) -> str:
    path = tmp_path / "broken.py"
    path.write_text(BROKEN)
    (tmp_path / "trace.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n1,5,2\n2,many,3\n")
    (tmp_path / "columns.csv").write_text("a,b\n1,2\n")
    (tmp_path / "repro.json").write_text("{}")
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["fuzz", "msa.decod"], 2, "did you mean msa.decode"),
        (["fuzz", "no.such:Thing"], 2, "no module 'no'"),
        (["fuzz", "graphcheck.zoo.rows:MaskedSums"], 2, "did you mean MaskedSum"),
        (["fuzz", "nowhere.py:Thing"], 2, "no file nowhere.py"),
        (["fuzz", "{broken}:NotOne"], 2, "not a graphcheck.Component"),
        (["fuzz", "{broken}:Raises", "--backend", "emulator"], 2, "no memory for this"),
        (["fuzz", "{broken}:Hides", "--backend", "emulator"], 2, "return graphcheck.Buffers"),
        (["fuzz", "msa.decode", "--examples", "0"], 2, "--examples"),
        (["fuzz", "msa.decode", "--time", "soon"], 2, "no duration"),
        (["fuzz", "msa.decode", "--backend", "tpu"], 2, "tpu"),
        (["fuzz", "msa.decode", "--trace", "{folder}/trace.csv"], 2, "line 3 of"),
        (["fuzz", "msa.decode", "--trace", "{folder}/columns.csv"], 2, "lacks the column"),
        (["fuzz", "msa.decode", "--trace", "{folder}/none.csv"], 2, "cannot read the trace"),
        (["fuzz", "graphcheck.zoo.rows:MaskedSum", "--trace", "{folder}/trace.csv"], 2, "does not take traces"),
        (["fuzz", "msa.decode", "--engine", "ray"], 3, "--engine local"),
        (["fuzz", "msa.decode", "--devices", "0,1"], 3, "one device"),
        (["replay", "{folder}/repro.json"], 2, "no repro file"),
        (["replay", "{folder}/gone.json"], 2, "cannot read the repro file"),
        (["check", "msa.decode", "--capture", "{{", "--replay", "{{}}"], 2, "--capture is no JSON"),
        (["check", "msa.decode", "--capture", "@gone", "--replay", "{{}}"], 2, "give a file"),
        (["explain", "GC3022"], 2, "did you mean GC302"),
        (["frobnicate"], 2, "frobnicate"),
    ],
)
def test_bad_input_is_one_sentence_and_no_traceback(
    arguments: list[str], code: int, words: str, broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Expected: the exit code, one line on stderr that says what to do, nothing that looks like a traceback."""
    arguments = [text.format(broken=broken, folder=Path(broken).parent) for text in arguments]
    got, _, err = run(arguments, capsys)
    assert got == code, err
    assert words in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_the_cuda_backend_without_a_gpu_exits_3(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(["fuzz", "msa.decode", "--backend", "cuda"], capsys)
    assert (code, err.count("\n")) == (3, 1)
    assert "use --backend emulator" in err


def test_a_find_exits_1_and_its_repro_file_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = "graphcheck.zoo.frozen:SlicesToLongest"
    report = tmp_path / "report.json"
    options = ["--backend", "emulator", "--seed", "1", "--out", str(tmp_path), "--json", str(report)]
    code, out, _ = run(["fuzz", target, *options], capsys)
    assert code == 1
    assert "GC302 error" in out
    data = json.loads(report.read_text())
    assert data["schema"] == "graphcheck-report/1"
    assert data["verdict"] == "fail"
    assert data["targets"][0]["findings"][0]["location"]["file"].endswith("frozen.py")
    code, out, _ = run(["replay", data["targets"][0]["repro"]], capsys)
    assert code == 1


def test_several_targets_are_all_searched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    targets = ["graphcheck.zoo.frozen:SlicesToLongest", "graphcheck.zoo.rows:MaskedSum"]
    code, out, _ = run(["fuzz", *targets, "--backend", "emulator", "--examples", "20", "--out", str(tmp_path)], capsys)
    assert code == 1
    assert "FAIL    graphcheck.zoo.frozen" in out
    assert "PASS    graphcheck.zoo.rows" in out


def test_a_clean_target_exits_0_from_a_checkout() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "graphcheck", "fuzz", "graphcheck.zoo.rows:MaskedSum", "--backend", "emulator"]
        + ["--examples", "5"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "PASS" in done.stdout


@pytest.fixture
def unread():
    """The writing end of a pipe that nobody reads."""
    reads, writes = os.pipe()
    os.close(reads)
    yield writes
    os.close(writes)


@pytest.mark.parametrize(
    "command",
    [["--help"], ["list"], ["fuzz", "graphcheck.zoo.rows:MaskedSum", "--backend", "emulator"]],
    ids=lambda command: command[0],
)
def test_a_reader_of_results_that_leaves_is_no_finding(command: list[str], unread: int) -> None:
    command = [sys.executable, "-m", "graphcheck", *command]
    done = subprocess.run(command, cwd=ROOT, stdout=unread, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (141, "")


def test_an_error_that_nobody_reads_keeps_its_code(unread: int) -> None:
    command = [sys.executable, "-m", "graphcheck", "fuzz", "nosuch.target", "--backend", "emulator"]
    assert subprocess.run(command, cwd=ROOT, stdout=unread, stderr=unread, check=False).returncode == 2


def test_nobody_has_to_look_at_progress(unread: int) -> None:
    shown = (
        "from graphcheck.cli import live\n"
        "from graphcheck.fuzzer import Progress\n"
        "live._EVERY = -1.0\n"
        "with live.Live('target') as line:\n"
        "    for plans in range(3):\n"
        "        line.show(Progress(phase='search', plans=plans, replays=0, findings=0, seconds=1.0))\n"
        "print('done')\n"
    )
    command = [sys.executable, "-c", shown]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=unread, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_a_pipe_to_another_process_that_breaks_is_an_internal_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(cli.commands["list"], "callback", broken)
    with pytest.raises(SystemExit) as left:
        main(["list"])
    assert left.value.code == 4
    assert "a pipe between processes broke" in capsys.readouterr().err


def test_list_doctor_and_explain_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert "msa.decode.m3" in run(["list"], capsys)[1]
    assert "emulator: lockstep" in run(["doctor"], capsys)[1]
    assert "length or extent baked" in run(["explain", "gc302"], capsys)[1]


def test_selftest_counts_and_bench_measures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "table.json"
    code, out, _ = run(["selftest", "--backend", "emulator", "--only", "GC403", "--json", str(table)], capsys)
    assert code == 0
    assert "twins silent" in out
    assert json.loads(table.read_text())["rows"][0]["code"] == "GC403"
    target = "graphcheck.zoo.rows:MaskedSum"
    figures = tmp_path / "figures.json"
    arguments = ["bench", target, "--backend", "emulator", "--repeats", "3", "--json", str(figures)]
    code, out, _ = run(arguments, capsys)
    assert code == 0
    assert "replay_over_cpu" in out
    found = json.loads(figures.read_text())
    assert set(found["rungs"]) == {"determinism", "reference", "side_effects", "vacuity"}
    assert min(found["eager"], found["replay"], found["bound"], found["step"]) > 0


def test_selftest_in_two_processes_gives_the_rows_in_the_order_of_the_zoo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Expected: the table of one process, but for the seconds."""
    tables = []
    for jobs in ("1", "2"):
        table = tmp_path / f"{jobs}.json"
        options = ["--only", "GC8", "--examples", "3", "--jobs", jobs, "--json", str(table)]
        run(["selftest", "--backend", "emulator", *options], capsys)
        rows = json.loads(table.read_text())["rows"]
        tables.append([{key: value for key, value in row.items() if key != "seconds"} for row in rows])
    assert tables[0] == tables[1] and len(tables[0]) > 3


def test_inspect_without_a_gpu_exits_3_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    code, out, err = run(["inspect", "msa.decode"], capsys)
    assert (code, out) == (3, "")
    assert "needs an NVIDIA GPU" in err
    assert err.count("\n") == 1


def test_the_catalogue_is_well_formed() -> None:
    for code, hazard in HAZARDS.items():
        assert code == hazard.code
        assert len(code) == 5
        for text in (hazard.name, hazard.mechanism, hazard.symptom, hazard.right):
            assert text.strip()
        assert set(hazard.detectors) <= set("scgre")
    assert lookup("gc704").code == "GC704"
    with pytest.raises(UnknownTarget):
        lookup("GC000000")


def test_every_zoo_code_has_a_page() -> None:
    from graphcheck.zoo import entries

    assert {entry.code for entry in entries()} <= set(HAZARDS)
