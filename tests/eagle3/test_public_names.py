"""The package's names load on first use, and every exception has its place in the tree."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import eagle3
from eagle3 import errors


def test_names_are_sorted_complete_and_importable():
    assert eagle3.__all__ == sorted(eagle3.__all__) == sorted(eagle3._HOMES) == dir(eagle3)
    for name in eagle3.__all__:
        assert getattr(eagle3, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        eagle3.nothing  # noqa: B018


def test_importing_the_package_loads_no_torch():
    code = "import sys, eagle3; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_exception_stands_in_the_tree_at_its_depth():
    drawn = errors.__doc__.splitlines()
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if kind.__module__ != "eagle3.errors":
            continue
        assert issubclass(kind, errors.Eagle3Error) and kind.__doc__
        [line] = [line for line in drawn if name in line.replace("─", " ").split()[:4]]
        depth = sum(issubclass(parent, errors.Eagle3Error) for parent in kind.__mro__)
        assert line.index(name) == 4 * depth, line
