"""What importing costs, and the direction of imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Each layer may import from itself and from those before it.
LAYERS = (
    ("errors", "finding"),
    (
        "catalogue",
        "contract",
        "environment",
        "report",
        "poison",
        "cases",
        "plan",
        "generation",
        "strategies",
        "component",
    ),
    ("lint", "decorated"),
    ("compare", "watch", "graph", "backend", "zoo"),
    ("oracle",),
    ("runner", "shrinker"),
    ("checker", "repro", "registry"),
    ("fuzzer", "trace", "worker"),
    ("bench", "inspector", "selftest"),
    ("cli", "pytest_plugin", "__main__"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Modules that a file imports, and whether at its top level."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in top
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            yield node.module, id(node) in top


@pytest.mark.parametrize(
    "module", ["graphcheck", "graphcheck.pytest_plugin", "graphcheck.cli", "graphcheck.catalogue", "graphcheck.lint"]
)
def test_importing_loads_neither_torch_nor_hypothesis(module: str) -> None:
    """Expected: a fresh interpreter that imports the module has loaded neither."""
    code = f"import sys, {module}; print(sorted({{'torch', 'hypothesis'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_module_of_graphcheck_has_a_layer() -> None:
    names = {path.stem if path.suffix else path.name for path in (ROOT / "graphcheck").iterdir()}
    assert names - {"__init__", "__pycache__", "py"} == set(LEVEL)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "graphcheck").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_graphcheck_imports_only_from_its_own_layer_or_before(path: Path) -> None:
    own = path.relative_to(ROOT / "graphcheck").parts[0].removesuffix(".py")
    if own == "__init__":
        return
    for module, at_top in imports(path):
        parts = module.split(".")
        if parts[0] in ("msa", "eagle3"):
            pytest.fail(f"{path} imports {module}")
        if parts[0] != "graphcheck" or len(parts) < 2:
            continue
        if own == "repro" and parts[1] in ("checker", "registry") and not at_top:
            continue
        assert LEVEL[parts[1]] <= LEVEL[own], f"{own} imports {module}"


@pytest.mark.parametrize(
    ("package", "more"),
    [("report", ()), ("catalogue", ()), ("lint", ("catalogue",))],
    ids=["report", "catalogue", "lint"],
)
def test_report_catalogue_and_lint_import_findings_only(package: str, more: tuple[str, ...]) -> None:
    for path in (ROOT / "graphcheck" / package).rglob("*.py"):
        for module, _ in imports(path):
            assert module.split(".")[0] not in ("torch", "hypothesis")
            if module.startswith("graphcheck."):
                assert module.split(".")[1] in (package, "finding", "errors", *more)


@pytest.mark.parametrize("package", ["msa", "eagle3"])
def test_only_components_and_zoo_import_more_of_graphcheck_than_its_contract(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        part = path.relative_to(ROOT / package).parts[0].removesuffix(".py")
        for module, _ in imports(path):
            if module.split(".")[0] == "graphcheck" and part not in ("component", "zoo"):
                assert module == "graphcheck.contract", f"{path} imports {module}"
            assert not (package == "msa" and module.startswith("eagle3"))


def test_the_public_names_are_sorted_complete_and_importable() -> None:
    import graphcheck

    assert graphcheck.__all__ == ["__version__", *sorted(graphcheck.__all__[1:])]
    for name in graphcheck.__all__:
        assert getattr(graphcheck, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        graphcheck.nothing  # noqa: B018


def test_no_module_is_longer_than_450_lines() -> None:
    long = [
        str(path.relative_to(ROOT))
        for package in ("graphcheck", "msa", "eagle3")
        for path in (ROOT / package).rglob("*.py")
        if len(path.read_text(encoding="utf-8").splitlines()) > 450
    ]
    assert long == []
