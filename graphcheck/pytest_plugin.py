"""The pytest plugin: fixture ``graphcheck``, options, marker. Loading it imports neither torch nor Hypothesis."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from graphcheck.report import Report, TargetReport

_OPTIONS = (
    ("backend", "auto", "auto, cuda or emulator"),
    ("examples", "30", "plans to try for each component"),
    ("seed", "0", "the same seed gives the same plans"),
    ("report", "", "folder for JSON reports and repro files"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("graphcheck", "verification of code captured in CUDA graphs")
    for name, default, words in _OPTIONS:
        group.addoption(f"--graphcheck-{name}", default=None, help=f"{words} (default: {default or 'none'})")
        parser.addini(f"graphcheck_{name}", f"{words}", default=default)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "graphcheck(backend=..., examples=..., seed=...): settings of the graphcheck fixture for one test"
    )


def pytest_report_header(config: pytest.Config) -> str:
    return f"graphcheck: backend {_setting(config, 'backend')}, {_setting(config, 'examples')} examples"


@pytest.fixture
def graphcheck(request: pytest.FixtureRequest) -> Callable[..., Report]:
    """Call it with a component (or its class): searches for a failing plan and fails the test if there is one."""
    marker = request.node.get_closest_marker("graphcheck")
    marked: dict[str, Any] = dict(marker.kwargs) if marker is not None else {}

    def run(component: Any, **overrides: Any) -> Report:
        from graphcheck.fuzzer import fuzz

        chosen = {**marked, **overrides}
        folder = _setting(request.config, "report")
        out = Path(folder) if folder else Path(request.getfixturevalue("tmp_path"))
        target, again = _target(component)
        report = fuzz(
            component,
            backend=chosen.pop("backend", _setting(request.config, "backend")),
            examples=int(chosen.pop("examples", _setting(request.config, "examples"))),
            seed=int(chosen.pop("seed", _setting(request.config, "seed"))),
            out=out,
            target=chosen.pop("target", target),
            **chosen,
        )
        if folder:
            report.write(out / f"{_file_name(request.node.nodeid)}.json")
        (entry,) = report.targets
        if entry.stopped == "interrupted":
            raise KeyboardInterrupt
        if report.exit_code:
            pytest.fail(describe(entry, again), pytrace=False)
        return report

    return run


def describe(target: TargetReport, again: bool = True) -> str:
    """The findings of a target and the command that runs its plan again, as text.

    Args:
        again: whether the command line can make this component.
    """
    rungs = ", ".join(f"{rung} {status.value}" for rung, status in target.rungs.items())
    lines = [f"{target.target}: {target.verdict.value} ({rungs})"]
    for finding in target.findings:
        lines.append(f"{finding.code} {finding.severity.value}: {finding.message}")
        where = f"{finding.where}: {finding.where.source}" if finding.where is not None else ""
        for label, words in (
            ("at", where),
            ("in", finding.place),
            ("expected", finding.expected),
            ("got", finding.got),
            ("do", finding.advice),
        ):
            if words:
                lines.append(f"  {label}: {words}")
        lines += [f"  {words}" for words in finding.evidence]
    if target.repro is not None:
        words = (
            "again: graphcheck replay" if again else "plan (the component takes arguments, so only the test runs it):"
        )
        lines.append(f"{words} {shlex.quote(str(target.repro))}")
    return "\n".join(lines)


def _target(component: Any) -> tuple[str, bool]:
    """How the command line names a component, and whether it can make an equal one from that name."""
    name = getattr(component, "graphcheck_name", "")
    kind = component if isinstance(component, type) else type(component)
    if name:
        return name, True
    try:
        source = inspect.getsourcefile(kind)
        plain = kind is component or vars(kind()) == vars(component)
    except Exception:
        source, plain = None, False
    if source is None or "<locals>" in kind.__qualname__ or not plain:
        return kind.__name__, False
    path = Path(source)
    if path.with_name("__init__.py").exists():
        return f"{kind.__module__}:{kind.__qualname__}", True
    # Short where it can be: the name of the repro file is made from it.
    here = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{here}:{kind.__qualname__}", True


def _setting(config: pytest.Config, name: str) -> str:
    """The command line's value, or the ini file's."""
    given = config.getoption(f"--graphcheck-{name}")
    return str(given if given is not None else config.getini(f"graphcheck_{name}"))


def _file_name(nodeid: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in nodeid)
