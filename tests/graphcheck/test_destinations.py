"""Options of the command line that are refused before any work is done, and how a search that was stopped ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graphcheck.cli import main
from graphcheck.fuzzer import Progress
from graphcheck.zoo.rows import MaskedSum

TARGET = "graphcheck.zoo.rows:MaskedSum"


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--json", "{folder}"], "is a directory"),
        (["--json", "{file}/report.json"], "cannot be written"),
        (["--out", "{file}"], "is a file"),
        (["--out", "{file}/below"], "cannot be written"),
        (["--database", "{file}"], "is a file"),
        (["--database", "{folder}", "--no-database"], "exclude each other"),
        (["--devices", "first"], "names no devices"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_the_search(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(*arguments: Any, **options: Any) -> None:
        pytest.fail("searched")

    monkeypatch.setattr("graphcheck.fuzzer.fuzz", search)
    file = tmp_path / "file"
    file.write_text("")
    options = [text.format(folder=tmp_path, file=file) for text in options]
    code, _, err = run(["fuzz", TARGET, *options], capsys)
    assert code == 2, err
    assert words in err
    assert err.count("\n") == 1


def interrupted_at(plans: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C when that many plans were run; before the first one for 0."""

    def show(live: object, progress: Progress) -> None:
        if progress.plans == plans:
            raise KeyboardInterrupt

    def stage(component: MaskedSum, buffers: object, case: object) -> None:
        raise KeyboardInterrupt

    if plans:
        monkeypatch.setattr("graphcheck.cli.live.Live.show", show)
    else:
        monkeypatch.setattr(MaskedSum, "stage", stage)


def test_ctrl_c_prints_what_was_found_and_ends_by_its_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expected: the first target passes with three plans, the second is not started, the report is written."""
    interrupted_at(3, monkeypatch)
    report = tmp_path / "new" / "report.json"
    code, out, _ = run(["fuzz", TARGET, TARGET, "--backend", "emulator", "--json", str(report)], capsys)
    assert code == 0
    assert "3 plans" in out
    assert "stopped: interrupted" in out
    assert [target["stopped"] for target in json.loads(report.read_text())["targets"]] == ["interrupted"]


def test_ctrl_c_before_the_first_plan_is_no_verdict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted_at(0, monkeypatch)
    assert run(["fuzz", TARGET, "--backend", "emulator"], capsys)[0] == 130


def test_an_unexpected_exception_is_one_sentence_unless_debug(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expected: exit 4 with a hint; with --debug, before or behind the command, the exception itself."""

    def search(*arguments: Any, **options: Any) -> None:
        raise LookupError("lost\nand more")

    monkeypatch.setattr("graphcheck.fuzzer.fuzz", search)
    code, _, err = run(["fuzz", TARGET, "--backend", "emulator"], capsys)
    assert code == 4
    assert err == "graphcheck: internal error, LookupError: lost; run again with --debug and report it\n"
    for arguments in (["--debug", "fuzz", TARGET], ["fuzz", TARGET, "--debug"]):
        with pytest.raises(LookupError):
            main([*arguments, "--backend", "emulator"])


def test_the_header_comes_before_the_search_and_names_the_active_checks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(*arguments: Any, **options: Any) -> None:
        raise LookupError("lost")

    monkeypatch.setattr("graphcheck.fuzzer.fuzz", search)
    _, out, _ = run(["fuzz", TARGET, "--backend", "emulator"], capsys)
    assert out.startswith("graphcheck on emulator")
    assert "active: lockstep" in out
