"""The Triton operators, and a step that uses them, in Triton's interpreter, in a child process: it is chosen when triton is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def test_importing_the_head_does_not_import_triton():
    code = (
        "import sys, torch; before = 'triton' in sys.modules; import eagle3.head; from eagle3.ops import Operators\n"
        "Operators(); Operators('plain')\n"
        "raise SystemExit('triton' in sys.modules and not before or 'eagle3.ops.triton' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


@pytest.mark.parametrize("module", ["test_operators_on_triton", "test_step_on_triton", "test_components_on_triton"])
def test_kernels_in_the_interpreter(module: str, in_interpreter):
    in_interpreter(HERE / f"{module}.py")
