"""The pytest plugin: a repro file names a component that the command line can make, or says that it cannot."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from graphcheck.errors import ComponentRaised

pytest_plugins = ["pytester"]

TESTS = """
from graphcheck.zoo.frozen import SlicesToLongest

class Own(SlicesToLongest):
    pass

class Sized(SlicesToLongest):
    def __init__(self, size=1):
        self.size = size

def test_own(graphcheck):
    graphcheck(Own())

def test_sized(graphcheck):
    graphcheck(Sized(2))

def test_local(graphcheck):
    class Local(SlicesToLongest):
        pass
    graphcheck(Local)
"""

OPTIONS = (
    "-p",
    "no:cacheprovider",
    "--graphcheck-backend=emulator",
    "--graphcheck-examples=30",
    "--graphcheck-report=found",
)


@pytest.fixture(autouse=True)
def outside_of_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CI pytest repeats whole messages in its summary; lines are counted below."""
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)


def test_a_component_of_a_test_file_can_be_run_again_from_its_repro_file(pytester: pytest.Pytester) -> None:
    """Expected: replay finds the class by the path of its file; no command is promised where there is none."""
    path = pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess(*OPTIONS)
    result.assert_outcomes(failed=3)
    assert len([line for line in result.outlines if line.startswith("again: graphcheck replay ")]) == 1
    assert len([line for line in result.outlines if "only the test runs it" in line]) == 2
    files = [
        file for file in Path("found").glob("*.json") if "captures" in json.loads(file.read_text()).get("plan", {})
    ]
    targets = {json.loads(file.read_text())["target"]: file for file in files}
    again = pytester.run(sys.executable, "-m", "graphcheck", "replay", str(targets[f"{path.name}:Own"]))
    assert again.ret == 1


def test_ctrl_c_ends_the_test_run(pytester: pytest.Pytester) -> None:
    """Expected: the search keeps what it found, but the tests after it are not run."""
    pytester.makepyfile(
        """
        from graphcheck.zoo.rows import MaskedSum

        class Interrupts(MaskedSum):
            def stage(self, buffers, case):
                raise KeyboardInterrupt

        def test_first(graphcheck):
            graphcheck(Interrupts)

        def test_second():
            pass
        """
    )
    result = pytester.runpytest_subprocess(*OPTIONS)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.assert_outcomes()


def test_a_component_that_raises_fails_the_test_with_its_own_sentence(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        f"""
        import pytest
        from graphcheck.zoo.rows import MaskedSum
        from {ComponentRaised.__module__} import ComponentRaised

        class Raises(MaskedSum):
            def run(self, buffers):
                raise OSError("by hand")

        def test_raises(graphcheck):
            with pytest.raises(ComponentRaised, match="Raises.run raised OSError: by hand"):
                graphcheck(Raises)
        """
    )
    pytester.runpytest_subprocess(*OPTIONS).assert_outcomes(passed=1)
