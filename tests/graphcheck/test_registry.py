"""Targets: modules, files, registered names and instances become components; everything else is refused in words."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from graphcheck.errors import ComponentRaised, UnknownTarget
from graphcheck.registry import registered, resolve
from graphcheck.zoo.rows import MaskedSum
from msa.component import COMPONENTS

SOURCE = """
from graphcheck.zoo.rows import MaskedSum
import beside

class Own(MaskedSum):
    class Inner(MaskedSum):
        pass

made = Own()

def factory():
    return made

class Takes(MaskedSum):
    def __init__(self, rows):
        self.rows = rows

class Breaks(MaskedSum):
    def __init__(self):
        raise OSError("no disk")

number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "beside.py").write_text("value = 1\n")
    path = tmp_path / "own_components.py"
    path.write_text(SOURCE)
    return str(path)


@pytest.mark.parametrize("name", ["Own", "made", "factory", "Own.Inner"])
def test_a_file_gives_a_class_an_instance_a_factory_and_a_nested_class(name: str, file: str) -> None:
    """Expected: a component that knows its target; a module beside the file is importable while the file is loaded."""
    component = resolve(f"{file}:{name}")
    assert isinstance(component, MaskedSum)
    assert component.title == f"{file}:{name}"
    assert str(Path(file).parent) not in sys.path


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Owm", "did you mean Own"),
        ("number", "is int, not a graphcheck.Component"),
        ("Takes", "missing a required argument: 'rows'"),
        ("", "names no component"),
    ],
)
def test_what_is_no_component_is_refused_in_words(name: str, words: str, file: str) -> None:
    with pytest.raises(UnknownTarget, match=words):
        resolve(f"{file}:{name}")


def test_code_that_raises_while_it_is_loaded_or_made_is_named_with_its_line(file: str, tmp_path: Path) -> None:
    with pytest.raises(ComponentRaised, match=r"no disk at .*own_components\.py"):
        resolve(f"{file}:Breaks")
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0\n")
    with pytest.raises(ComponentRaised, match=r"ZeroDivisionError.*broken\.py:1"):
        resolve(f"{broken}:Own")


def test_a_path_without_its_ending_is_told_from_a_missing_module(tmp_path: Path) -> None:
    with pytest.raises(UnknownTarget, match=r"ends in \.py"):
        resolve(f"{tmp_path}/own_components:Own")
    with pytest.raises(UnknownTarget, match="no module 'not_there'"):
        resolve("not_there.at.all:Own")


def test_registered_names_are_those_of_the_packages() -> None:
    assert {f"msa.{key}" for key in COMPONENTS} <= set(registered())
    assert isinstance(resolve("msa.decode.m3"), COMPONENTS["decode.m3"])


def test_a_package_that_is_not_installed_offers_its_components_by_prefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expected: a name is package and key; a wrong key is answered with its neighbours."""
    package = tmp_path / "own_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "component.py").write_text(
        "from graphcheck.zoo.rows import MaskedSum\nCOMPONENTS = {'step.one': MaskedSum}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert isinstance(resolve("own_package.step.one"), MaskedSum)
    with pytest.raises(UnknownTarget, match=r"did you mean own_package\.step\.one"):
        resolve("own_package.step.two")
