"""The Triton kernels in Triton's interpreter, in a child process: the interpreter is chosen when triton is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CHILDREN = (
    "test_triton_exact.py",
    "test_triton_attention.py",
    "test_triton_driver.py",
    "test_triton_components.py",
    "test_decode_benchmark.py",
)


def release(package: str) -> tuple[int, ...]:
    """Major and minor version of an installed package."""
    return tuple(int(part) for part in version(package).split(".")[:2])


def test_importing_msa_and_a_portable_driver_does_not_import_triton():
    code = (
        "import sys, torch; before = 'triton' in sys.modules; import msa, msa.ops; from msa import DecodeDriver\n"
        "from msa.bench import small; DecodeDriver(small(), 4, 4, 'cpu')\n"
        "raise SystemExit('triton' in sys.modules and not before or 'msa.ops.triton' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


@pytest.mark.parametrize("name", CHILDREN)
def test_kernels_in_the_interpreter(name):
    pytest.importorskip("triton", reason="the kernels need triton, which is not installed")
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("this is the child process")
    if release("triton") < (3, 9) and release("numpy") >= (2, 4):
        pytest.skip("the interpreter of Triton before 3.9 needs numpy below 2.4")
    # NumPy says it of the interpreter itself.
    quiet = ("-W", "ignore:Conversion of an array with ndim:DeprecationWarning")
    child = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *quiet, str(HERE / name)],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert child.returncode == 0, child.stdout[-6000:] + child.stderr[-2000:]
    assert " passed" in child.stdout and " skipped" not in child.stdout
