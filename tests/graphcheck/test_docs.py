"""The documentation: its examples run and pass, its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from graphcheck.fuzzer import fuzz
from graphcheck.registry import resolve

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize(("page", "name"), [("README.md", "RaggedMean"), ("docs/component.md", "AppendAndSum")])
def test_the_component_of_a_page_passes(page: str, name: str, tmp_path: Path) -> None:
    """Expected: the block as it stands is a file that fuzz takes; no error and no warning."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    (source,) = [block for block in blocks if f"class {name}(" in block]
    path = tmp_path / "my_file.py"
    path.write_text(source)
    (target,) = fuzz(resolve(f"{path}:{name}"), backend="emulator", examples=30, seed=1).targets
    assert [
        f"{finding.code}: {finding.message}" for finding in target.findings if finding.severity.value != "note"
    ] == []
    assert target.verdict.value == "pass"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_named_files_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (page.parent / link).exists(), link
    for named in re.findall(r"`((?:graphcheck|msa|docs|tests)/[\w/.]+)`", text):
        assert (ROOT / named).exists(), named


def test_the_fidelity_table_is_in_step() -> None:
    """Expected: docs/emulator.md ends with what scripts/fidelity prints of the stored results."""
    results = ROOT / "benchmarks" / "results" / "h200"
    files = [results / "selftest_emulator.json", results / "selftest_cuda.json"]
    done = subprocess.run([sys.executable, ROOT / "scripts" / "fidelity", *files], capture_output=True, text=True)
    assert (ROOT / "docs" / "emulator.md").read_text(encoding="utf-8").endswith(done.stdout)
    assert done.stdout.count("\n| GC") > 100
