"""The Triton operators, and a step that uses them, in Triton's interpreter, in a child process: it is chosen when triton is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def release(package: str) -> tuple[int, ...]:
    """Major and minor version of an installed package."""
    return tuple(int(part) for part in version(package).split(".")[:2])


def test_importing_the_head_does_not_import_triton():
    code = (
        "import sys, torch; before = 'triton' in sys.modules; import eagle3.head; from eagle3.ops import Operators\n"
        "Operators(); Operators('plain')\n"
        "raise SystemExit('triton' in sys.modules and not before or 'eagle3.ops.triton' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


@pytest.mark.parametrize("module", ["test_operators_on_triton", "test_step_on_triton"])
def test_kernels_in_the_interpreter(module: str):
    pytest.importorskip("triton", reason="the kernels need triton, which is not installed")
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("this is the child process")
    if release("triton") < (3, 9) and release("numpy") >= (2, 4):
        pytest.skip("the interpreter of Triton before 3.9 needs numpy below 2.4")
    # NumPy says it of the interpreter itself.
    quiet = ("-W", "ignore:Conversion of an array with ndim:DeprecationWarning")
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", *quiet)
    child = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(HERE / f"{module}.py")],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert child.returncode == 0, child.stdout[-6000:] + child.stderr[-2000:]
    assert " passed" in child.stdout and " skipped" not in child.stdout
