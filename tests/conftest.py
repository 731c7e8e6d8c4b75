"""What tests of several packages share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def in_interpreter() -> Callable[[Path], None]:
    """Runs a test file in Triton's interpreter, in a child process: it is chosen when triton is imported."""
    pytest.importorskip("triton", reason="the kernels need triton, which is not installed")
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("this is the child process")
    if _release("triton") < (3, 9) and _release("numpy") >= (2, 4):
        pytest.skip("the interpreter of Triton before 3.9 needs numpy below 2.4")

    def run(path: Path) -> None:
        # NumPy says it of the interpreter itself.
        quiet = ("-W", "ignore:Conversion of an array with ndim:DeprecationWarning")
        child = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *quiet, str(path)],
            cwd=ROOT,
            env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert child.returncode == 0, child.stdout[-6000:] + child.stderr[-2000:]
        assert " passed" in child.stdout and " skipped" not in child.stdout

    return run


def _release(package: str) -> tuple[int, ...]:
    """Major and minor version of an installed package."""
    return tuple(int(part) for part in version(package).split(".")[:2])
