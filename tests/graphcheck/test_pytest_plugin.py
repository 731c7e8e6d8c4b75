"""The pytest plugin: the fixture passes and fails tests, options and marker reach it."""

from __future__ import annotations

import json

import pytest

pytest_plugins = ["pytester"]

TESTS = """
import pytest
from graphcheck.zoo.frozen import SlicesToLongest
from graphcheck.zoo.rows import MaskedSum

def test_clean(graphcheck):
    assert graphcheck(MaskedSum).targets[0].counts.plans == 7

@pytest.mark.graphcheck(examples=40, seed=1)
def test_planted(graphcheck):
    graphcheck(SlicesToLongest)
"""


def test_the_fixture_reports_findings_and_the_command_that_runs_them_again(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    options = ("--graphcheck-backend=emulator", "--graphcheck-examples=7", "--graphcheck-report=found")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", *options)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["graphcheck: backend emulator, 7 examples", "*GC302 error*", "again: graphcheck replay *"]
    )
    reports = sorted((pytester.path / "found").glob("*planted*.json"))
    assert json.loads(reports[0].read_text())["verdict"] == "fail"


def test_ini_twins_set_the_defaults(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ngraphcheck_examples = 7\ngraphcheck_backend = emulator\n")
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-k", "clean")
    result.assert_outcomes(passed=1)
