"""The benchmark of the loop: its table and its check at sizes that take seconds, on the CPU."""

from __future__ import annotations

import copy
import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

from eagle3.accept import accept_greedy
from eagle3.engine import Engine
from eagle3.m3.config import BEGIN
from eagle3.m3.training.text import is_held_out

torch.set_num_threads(1)
FILE = Path(__file__).parents[2] / "benchmarks" / "eagle3_loop.py"


@pytest.fixture(scope="module")
def loop():
    spec = importlib.util.spec_from_file_location("eagle3_loop", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def results(loop, tmp_path_factory):
    file = tmp_path_factory.mktemp("loop") / "results.json"
    sizes = ["--tokens", "5", "--prompt-tokens", "5", "--batches", "1", "2", "--draft-lens", "0", "2"]
    check = ["--prompts", "3", "--check-tokens", "4"]
    assert loop.main(["--device", "cpu", "--quick", *sizes, *check, "--json", str(file)]) == 0
    return json.loads(file.read_text())


def test_the_table_has_every_batch_and_draft_length(results):
    assert [(row["batch"], row["draft_len"]) for row in results["table"]] == [(1, 0), (1, 2), (2, 0), (2, 2)]
    for row in results["table"]:
        assert row["eager_tokens_per_second"] > 0
        assert "ratio" not in row and "graphs_tokens_per_second" not in row, "there are no graphs on the CPU"
        assert (row["ar"] is None) == (row["draft_len"] == 0)
        assert row["al"] == pytest.approx(1 + (row["ar"] or 0) * row["draft_len"], abs=1e-3)


def test_the_check_has_every_draft_length(results):
    assert [entry["draft_len"] for entry in results["check"]] == [0, 2]
    assert all(entry["prompts"] == 3 and entry["tokens"] == 12 for entry in results["check"])


def test_any_difference_fails(loop, results):
    assert not loop.failed(results)
    for place, name, value in (
        ("check", "prompts_unlike_plain", 1),
        ("check", "prompts_unlike_eager", 1),
        ("check", "kept_unlike_eager", True),
        ("table", "modes_keep_the_same", False),
    ):
        spoilt = copy.deepcopy(results)
        spoilt[place][-1][name] = value
        assert loop.failed(spoilt), name


def test_texts_that_differ_are_counted(loop, counting, prompts, monkeypatch):
    """Every second engine keeps a draft that the target does not say."""
    made = []

    def engine(self, mode, batch, draft_len):
        made.append(mode)
        accept = loop.Forced(1) if draft_len and len(made) % 2 else accept_greedy
        return Engine(*self.pair, draft_len=draft_len, max_batch=batch, max_seq_len=64, accept=accept)

    monkeypatch.setattr(loop.Setting, "engine", engine)
    (entry,) = loop.check(loop.Setting(counting, prompts[1:2], 8, loop.MODES, "portable"), [2])
    assert made == ["eager", "eager", "graphs"]
    assert (entry["prompts_unlike_plain"], entry["prompts_unlike_eager"], entry["kept_unlike_eager"]) == (0, 1, True)


@pytest.mark.parametrize("kept", range(3))
def test_forced_acceptance_keeps_what_it_is_told(loop, counting, prompts, kept):
    setting = loop.Setting(counting, prompts, 7, ["eager"], "portable", 1)
    row = loop.measure(setting, 2, 2, loop.Forced(kept), forced=kept)
    assert row["al"] == 1 + kept and row["ar"] == kept / 2
    assert row["steps"] == -(-6 // (1 + kept))


def test_forced_acceptance_leaves_padding_rows_alone(loop):
    tokens, count = torch.zeros(2, 4, dtype=torch.int64), torch.full((2,), 9, dtype=torch.int32)
    loop.Forced(2)(torch.ones(2, 3), torch.zeros(2, 4), torch.tensor([12, 0], dtype=torch.int32), tokens, count)
    assert count.tolist() == [3, 0]


def test_the_table_of_m3_forces_every_number(loop, capsys):
    arguments = ["--m3-width", "--device", "cpu", "--quick", "--tokens", "3", "--prompt-tokens", "5", "--batches", "1"]
    assert loop.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and "L 0" in lines[0]
    assert [f"AL {1 + kept}.000, {kept} drafts kept by force" in lines[1 + kept] for kept in range(4)] == [True] * 4


def test_prompts_are_held_out(loop, tmp_path):
    names = [f"module{number}.py" for number in range(60)]
    kept_back = sorted(name for name in names if is_held_out(name))
    assert 0 < len(kept_back) < 60
    for name in names:
        (tmp_path / name).write_text(f"# {name} of a library\n")
    texts = loop.held_out(2, 16, tmp_path)
    assert len(texts) == 2 and texts[0] == [BEGIN, *f"# {kept_back[0]} of a library\n".encode()][:16]


def test_what_cannot_be_measured(loop, capsys):
    with pytest.raises(SystemExit):
        loop.parse(["--m3-width", "--prompts", "3", "--device", "cpu"])
    assert "leave --m3-width out" in capsys.readouterr().err
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit, match="--device cpu runs eager steps"):
            loop.parse([])
