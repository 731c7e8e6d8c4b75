"""``graphcheck lint``: formats, suppressions, settings, exit codes, and input of any kind."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from graphcheck.cli import main
from graphcheck.errors import UsageError
from graphcheck.lint import Settings, lint, load

ROOT = Path(__file__).parents[3]
READS = """import torch
from graphcheck import capture_safe

@capture_safe(dynamic=("x",))
def f(x):
    return x.max().item(){comment}
"""


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["lint", *arguments])
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


@pytest.fixture
def bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, made the working directory, whose one file has one error at line 6."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.py").write_text(READS.format(comment=""))
    return tmp_path


def codes(folder: Path, settings: Settings | None = None) -> list[str]:
    return [found.code for found in lint([folder], settings or Settings()).findings]


def test_text_says_what_where_and_what_to_write_in_three_lines(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["bad.py"], capsys)
    assert (code, err) == (1, "")
    assert out.splitlines() == [
        "bad.py:6:12: GC102 error: x.max().item() reads x.max() on the host, but while capturing no value exists yet",
        "    in f",
        "    write: keep it a tensor inside the region and read it after the replay",
        "1 error: 1 file, 1 captured region, 0 suppressed",
    ]


def test_clean_source_exits_zero(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bad / "bad.py").write_text("x = 1\n")
    assert run(["."], capsys)[:2] == (0, "clean: 1 file, 0 captured regions, 0 suppressed\n")


@pytest.mark.parametrize(
    "arguments",
    [["missing.py"], ["bad.py", "--select", "GC777"], ["bad.py", "--format", "xml"], [], ["--ignore", "x", "."]],
)
def test_usage_errors_exit_two_with_one_sentence(
    arguments: list[str], bad: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(arguments, capsys)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1 and "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(["--select", "GC1"], 1), (["--select", "gc102,GC3"], 1), (["--select", "GC3"], 0), (["--ignore", "GC1"], 0)],
)
def test_select_and_ignore_take_codes_and_prefixes(
    arguments: list[str], expected: int, bad: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([".", *arguments], capsys)[0] == expected


def test_settings_come_from_pyproject_and_options_go_over_them(bad: Path) -> None:
    """Expected: ignore adds up, select is replaced, excluded paths are never read."""
    (bad / "pyproject.toml").write_text('[tool.graphcheck]\nselect = ["GC3"]\nignore = ["GC2"]\nexclude = ["vendor"]\n')
    (bad / "vendor").mkdir()
    (bad / "vendor" / "worse.py").write_text("def (")
    assert codes(bad, load(bad)) == []
    assert codes(bad, load(bad, select=["GC1"])) == ["GC102"]
    assert codes(bad, load(bad, select=["GC1"], ignore=["GC102"])) == []
    assert load(bad / "bad.py").ignore == ("GC2",)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("[tool.graphcheck]\nselct = []", "no setting 'selct'"),
        ('[tool.graphcheck]\nselect = "GC1"', "list of strings"),
        ('[tool.graphcheck]\nselect = ["E501"]', "no code 'E501'"),
        ("[tool.graphcheck", "cannot be read"),
        ("[tool]\ngraphcheck = 3", "must be a table"),
    ],
)
def test_malformed_settings_are_usage_errors(table: str, words: str, bad: Path) -> None:
    (bad / "pyproject.toml").write_text(table)
    with pytest.raises(UsageError, match=words):
        load(bad)


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ("  # graphcheck: ignore[GC102] read once, at start-up", []),
        ("  # graphcheck: ignore[GC1] read once, at start-up", []),
        ("  # graphcheck: ignore[GC102]", ["GC102", "GC992"]),
        ("  # graphcheck: ignore", ["GC102", "GC992"]),
        ("  # graphcheck: ignore[GC101] wrong code", ["GC102", "GC991"]),
        ("  # graphcheck: ignore[GC102, GC101] one of them is unused", ["GC991"]),
    ],
)
def test_comments_silence_with_a_reason_and_only_what_is_there(comment: str, expected: list[str], bad: Path) -> None:
    """Expected: GC992 without a reason (and the finding stays), GC991 for what silences nothing."""
    (bad / "bad.py").write_text(READS.format(comment=comment))
    assert sorted(codes(bad)) == expected


def test_a_comment_on_a_line_of_its_own_speaks_of_the_next_statement(bad: Path) -> None:
    source = READS.format(comment="").replace("    return", "    # graphcheck: ignore[GC102] known\n    return")
    (bad / "bad.py").write_text(source)
    assert codes(bad) == []


def test_a_string_that_looks_like_a_comment_silences_nothing(bad: Path) -> None:
    (bad / "bad.py").write_text(READS.format(comment="") + '\nx = "# graphcheck: ignore[GC102]"\n')
    assert codes(bad) == ["GC102"]


def test_an_allowance_of_the_contract_silences_its_code(bad: Path) -> None:
    source = READS.format(comment="").replace('("x",))', '("x",), allow={"GC102": "a debug build"})')
    (bad / "bad.py").write_text(source)
    assert codes(bad) == []
    (bad / "bad.py").write_text(source.replace("a debug build", ""))
    assert codes(bad) == ["GC992"]


def test_an_allowance_that_silences_nothing_is_reported(bad: Path) -> None:
    """Expected: GC991 once for the contract; codes that only running finds may be allowed all the same."""
    allowed = '("x",), allow={"GC102": "a debug build", "GC101": "none", "GC504": "fuzz finds it"})'
    (bad / "bad.py").write_text(READS.format(comment="").replace('("x",))', allowed))
    assert codes(bad) == ["GC991"]
    assert codes(bad, Settings(ignore=("GC991",))) == []


def test_github_annotations_escape_what_the_protocol_reserves(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(["bad.py", "--format", "github"], capsys)
    (line,) = out.splitlines()
    assert line.startswith("::error file=bad.py,line=6,col=12,title=graphcheck GC102::x.max().item() reads")
    assert "%0Ain f%0Awrite: " in line


def test_json_holds_every_field(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(run(["bad.py", "--format", "json"], capsys)[1])
    (found,) = report["findings"]
    assert (report["schema"], report["files"], report["regions"]) == ("graphcheck-lint/1", 1, 1)
    assert {key: found[key] for key in ("code", "severity", "file", "line", "column", "reached")} == {
        "code": "GC102",
        "severity": "error",
        "file": "bad.py",
        "line": 6,
        "column": 12,
        "reached": "f",
    }


def check_sarif(log: dict[str, Any]) -> None:
    """Pass if a log has what SARIF 2.1.0 requires of the objects that lint writes, and nothing it does not know."""
    assert set(log) == {"$schema", "version", "runs"} and log["version"] == "2.1.0"
    (run_,) = log["runs"]
    assert set(run_) == {"tool", "columnKind", "results"}
    assert run_["columnKind"] in ("utf16CodeUnits", "unicodeCodePoints")
    assert set(run_["tool"]) == {"driver"}
    driver = run_["tool"]["driver"]
    assert set(driver) == {"name", "rules"} and driver["name"]
    identifiers = [rule["id"] for rule in driver["rules"]]
    assert len(set(identifiers)) == len(identifiers)
    for rule in driver["rules"]:
        assert set(rule) == {"id", "name", "shortDescription", "fullDescription", "help"}
        assert all(
            set(rule[part]) == {"text"} and rule[part]["text"]
            for part in ("shortDescription", "fullDescription", "help")
        )
    for result in run_["results"]:
        assert set(result) == {"ruleId", "ruleIndex", "level", "message", "locations"}
        assert identifiers[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert set(result["message"]) == {"text"} and result["message"]["text"]
        (location,) = result["locations"]
        assert set(location) == {"physicalLocation"}
        physical = location["physicalLocation"]
        assert set(physical) == {"artifactLocation", "region"}
        assert set(physical["artifactLocation"]) <= {"uri", "uriBaseId"}
        assert not any(letter in physical["artifactLocation"]["uri"] for letter in ' \\"<>')
        assert set(physical["region"]) == {"startLine", "startColumn"}
        assert all(isinstance(number, int) and number >= 1 for number in physical["region"].values())


def test_sarif_has_what_the_schema_requires(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Expected: required members only, indices that point at their rules, relative and encoded addresses."""
    (bad / "a b.py").write_text("def (")
    log = json.loads(run([".", "--format", "sarif"], capsys)[1])
    check_sarif(log)
    results = log["runs"][0]["results"]
    assert [(result["ruleId"], result["level"]) for result in results] == [("GC990", "error"), ("GC102", "error")]
    assert results[0]["locations"][0]["physicalLocation"]["artifactLocation"] == {
        "uri": "a%20b.py",
        "uriBaseId": "%SRCROOT%",
    }


def test_sarif_of_clean_source_is_valid(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bad / "bad.py").write_text("")
    log = json.loads(run([".", "--format", "sarif"], capsys)[1])
    check_sarif(log)
    assert log["runs"][0]["results"] == []


@pytest.mark.parametrize(
    "data",
    [
        b"def (",
        b"\xff\xfe\x00bad",
        b"# -*- coding: nonsense -*-\n",
        b"x = 1\x00",
        b"x = (" * 500,
        b"\xef\xbb\xbfx = '\xff'",
    ],
    ids=["syntax", "bytes", "encoding", "null", "nesting", "utf8"],
)
def test_files_that_cannot_be_parsed_are_reported_and_the_rest_is_linted(data: bytes, bad: Path) -> None:
    (bad / "odd.py").write_bytes(data)
    assert sorted(codes(bad)) == ["GC102", "GC990"]


def test_warnings_alone_exit_zero(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = (
        "import torch, threading\ndef b(g, x):\n    with torch.cuda.graph(g):\n        y = x * 2\n"
        "    threading.Thread(target=g.replay)\n    return x, y\n"
    )
    (bad / "bad.py").write_text(source)
    code, out, _ = run(["."], capsys)
    assert code == 0 and "GC503 warning" in out


def test_the_order_is_stable_and_by_line(bad: Path) -> None:
    """Expected: the same findings in the same order whatever order the paths come in."""
    for name in ("z.py", "a.py"):
        (bad / name).write_text(READS.format(comment="") + READS.format(comment="").replace("f(x)", "g(x)"))
    one = lint([bad / "z.py", bad / "a.py"], Settings()).findings
    other = lint([bad / "a.py", bad / "z.py"], Settings()).findings
    assert one == other
    assert [str(found.where) for found in one] == ["a.py:6", "a.py:12", "z.py:6", "z.py:12"]


def test_linting_works_where_torch_cannot_be_imported(bad: Path) -> None:
    """Expected: the command finds the error, and neither torch nor hypothesis was imported."""
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['hypothesis'] = None; sys.modules['numpy'] = None\n"
        "from graphcheck.cli import main; main(['lint', 'bad.py'])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=bad, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
    assert "GC102" in done.stdout


def test_no_mutilated_source_makes_the_linter_raise(tmp_path: Path) -> None:
    """Expected: for files of this repository with lines removed, doubled and swapped, linting ends without an exception."""
    generator = random.Random(5)
    sources = [*sorted((ROOT / "graphcheck" / "zoo").glob("*.py")), ROOT / "msa" / "driver.py"]
    for number in range(40):
        lines = generator.choice(sources).read_text(encoding="utf-8").splitlines()
        for _ in range(generator.randint(1, 6)):
            here, there = generator.randrange(len(lines)), generator.randrange(len(lines))
            lines[here] = generator.choice(
                ["", lines[there], lines[here].replace("self", "x"), lines[here].replace("(", "[")]
            )
        path = tmp_path / f"m{number}.py"
        path.write_text("\n".join(lines))
        assert lint([path], Settings()).files == 1


def test_the_hook_definition_runs_the_command() -> None:
    text = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    for line in ("id: graphcheck-lint", "entry: graphcheck lint", "language: python", "pass_filenames: false"):
        assert line in text
