"""The Triton kernels in Triton's interpreter, in a child process: the interpreter is chosen when triton is imported."""

from __future__ import annotations

import subprocess
import sys
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


def test_importing_msa_and_a_portable_driver_does_not_import_triton():
    code = (
        "import sys, torch; before = 'triton' in sys.modules; import msa, msa.ops; from msa import DecodeDriver\n"
        "from msa.bench import small; DecodeDriver(small(), 4, 4, 'cpu')\n"
        "raise SystemExit('triton' in sys.modules and not before or 'msa.ops.triton' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


@pytest.mark.parametrize("name", CHILDREN)
def test_kernels_in_the_interpreter(name, in_interpreter):
    in_interpreter(HERE / name)
