"""Lints files and folders: reads everything, walks every region, applies the rules and the suppressions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from graphcheck.errors import UsageError
from graphcheck.finding import Finding, Location, Severity
from graphcheck.lint.frames import DEEPEST
from graphcheck.lint.log import Log
from graphcheck.lint.package import ModuleInfo, Package
from graphcheck.lint.regions import DECORATORS, logs
from graphcheck.lint.rules import CODES, RULES, Problem
from graphcheck.lint.rules.ranks import contracts
from graphcheck.lint.settings import Settings
from graphcheck.lint.source import Source, read

_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})


@dataclass
class Result:
    """What linting found.

    Args:
        findings: sorted by file, line, column and code.
        columns: column of each finding, from 1.
        files: how many files were read.
        regions: how many captured regions were walked.
        suppressed: how many findings comments and contracts silenced.
    """

    findings: list[Finding] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    files: int = 0
    regions: int = 0
    suppressed: int = 0

    @property
    def exit_code(self) -> int:
        """1 where an error was found."""
        return int(any(finding.severity is Severity.ERROR for finding in self.findings))


def python_files(paths: Iterable[Path], settings: Settings) -> list[Path]:
    """The Python files below these paths, sorted; files given by name are taken whatever they are called.

    Raises:
        UsageError: a path does not exist.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            for inner in sorted(_below(path, settings)):
                found[inner] = None
        elif path.is_file():
            if not settings.excludes(path):
                found[path] = None
        else:
            raise UsageError(f"{path} does not exist; name files or folders of Python source")
    return list(found)


def _below(folder: Path, settings: Settings) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for path in entries:
        if path.is_dir():
            hidden = path.name.startswith(".") or path.name in _SKIPPED
            if not hidden and not path.is_symlink() and not settings.excludes(path):
                yield from _below(path, settings)
        elif path.suffix == ".py" and path.is_file() and not settings.excludes(path):
            yield path


def lint(paths: Iterable[Path], settings: Settings) -> Result:
    """Everything that the rules find below ``paths``.

    Raises:
        UsageError: a path does not exist.
    """
    paths = list(paths)
    files = python_files(paths, settings)
    package = Package()
    result = Result(files=len(files))
    modules: list[ModuleInfo] = []
    problems: list[tuple[str, int, int, int, Finding]] = []
    for path in files:
        try:
            source = read(path)
        except OSError as error:
            source = Source(path, "", None, (1, f"cannot be read: {error.strerror}"))
        if source.problem is not None:
            problems.append(_unreadable(source))
        modules.append(package.add(source))
    known = any("graphcheck" in module.source.text for module in modules)
    for module in modules:
        try:
            for problem in contracts(module, DECORATORS):
                problems.append(_finding(problem, ""))
            for log in logs(module, known):
                result.regions += 1
                if log.exhausted:
                    problems.append(_exhausted(log.module, log.title, log.node))
                elif log.cut:
                    problems.append(_cut(log))
                allowed: set[str] = set()
                for rule in RULES:
                    for problem in rule(log):
                        if problem.code in log.allowed:
                            result.suppressed += 1
                            allowed.add(problem.code)
                            continue
                        problems.append(_finding(problem, log.title))
                problems += _unused(log, allowed, settings)
        except RecursionError:
            problems.append(_exhausted(module, module.name, module.source.tree))
    _settle(result, package, problems, settings, files, paths)
    return result


def _settle(
    result: Result,
    package: Package,
    problems: list[tuple[str, int, int, int, Finding]],
    settings: Settings,
    files: list[Path],
    paths: list[Path],
) -> None:
    """Drop repetitions and what comments silence, add what is wrong with the comments, and sort."""
    kept: dict[tuple[str, int, str], tuple[str, int, int, int, Finding]] = {}
    for entry in problems:
        file, line, last, _, finding = entry
        module = package.by_path.get(Path(file))
        suppressions = module.source.suppressions if module is not None else []
        silenced = [s for s in suppressions if s.silences(finding.code, line, last)]
        if any(s.reason for s in silenced):
            result.suppressed += 1
            continue
        kept.setdefault((file, line, finding.code), entry)
    folders = [path for path in paths if path.is_dir()]
    for path in files:
        module = package.by_path[path]
        alone = not (path.parent / "__init__.py").is_file()
        whole = alone or any(folder in path.parents for folder in folders)
        for suppression in module.source.suppressions:
            for code, message, advice in _about(
                suppression.codes, suppression.reason, suppression.used, whole, settings
            ):
                finding = Finding(code, message, where=Location(str(path), suppression.line), advice=advice)
                kept[(str(path), suppression.line, code + message)] = (
                    str(path),
                    suppression.line,
                    suppression.line,
                    1,
                    finding,
                )
    ordered = sorted(kept.values(), key=lambda entry: (entry[0], entry[1], entry[3], entry[4].code, entry[4].message))
    for _, _, _, column, finding in ordered:
        if settings.reports(finding.code):
            result.findings.append(finding)
            result.columns.append(column)


def _about(
    codes: tuple[str, ...], reason: str, used: set[str], whole: bool, settings: Settings
) -> Iterator[tuple[str, str, str]]:
    """What is wrong with a suppression comment."""
    if not codes:
        yield "GC992", "this comment silences no code by name", "write # graphcheck: ignore[GC102] and the reason"
    elif not reason:
        named = ", ".join(codes)
        yield (
            "GC992",
            f"{named} is ignored without a reason, so it is reported all the same",
            "say behind the bracket why it is harmless here",
        )
    for code in codes:
        if whole and reason and code not in used and settings.reports(code):
            yield "GC991", f"{code} is ignored here, and lint does not report it here", "remove the comment"


def _finding(problem: Problem, title: str) -> tuple[str, int, int, int, Finding]:
    node = problem.node
    line = int(getattr(node, "lineno", 1))
    last = int(getattr(node, "end_lineno", None) or line)
    column = int(getattr(node, "col_offset", 0)) + 1
    if isinstance(getattr(node, "body", None), list):
        last = line
    path = str(problem.module.source.path)
    place = problem.place
    function = place.function.qualname if place is not None and place.function is not None else ""
    finding = Finding(
        problem.code,
        problem.message,
        problem.severity,
        Location(path, line, function),
        place=_way(problem, title),
        advice=problem.advice,
    )
    return path, line, last, column, finding


def _way(problem: Problem, title: str) -> str:
    """How the region gets to the line: ``run (a.py:10) -> step (b.py:4)``."""
    place = problem.place
    if place is None or not place.calls or not place.captured:
        return title if place is not None else ""
    steps = [title]
    for function, file, line in place.calls[-place.depth :] if place.depth else ():
        steps[-1] = f"{steps[-1]} ({Path(file).name}:{line})"
        steps.append(function)
    return " -> ".join(steps)


def _unreadable(source: Source) -> tuple[str, int, int, int, Finding]:
    line, words = source.problem or (1, "unreadable")
    finding = Finding(
        "GC990",
        f"this file was not checked: {words}",
        where=Location(str(source.path), line),
        advice="correct the syntax, or exclude the file in [tool.graphcheck]",
    )
    return str(source.path), line, line, 1, finding


def _cut(log: Log) -> tuple[str, int, int, int, Finding]:
    line = int(getattr(log.node, "lineno", 1))
    finding = Finding(
        "GC990",
        f"{log.title} calls more than {DEEPEST} levels deep; what lies deeper was not read",
        Severity.WARNING,
        Location(str(log.module.source.path), line),
        advice="decorate the inner function with capture_safe, or verify the region with graphcheck fuzz",
    )
    return str(log.module.source.path), line, line, 1, finding


def _unused(log: Log, used: set[str], settings: Settings) -> Iterator[tuple[str, int, int, int, Finding]]:
    """Allowances of a contract for codes that lint could report and does not; not where the region was not read."""
    if log.exhausted or log.cut or log.allowing is None:
        return
    line = int(getattr(log.allowing, "lineno", 1))
    column = int(getattr(log.allowing, "col_offset", 0)) + 1
    unused = [code for code in log.allowed if code in CODES and code not in used and settings.reports(code)]
    if unused:
        finding = Finding(
            "GC991",
            f"the contract of {log.title} allows {', '.join(unused)}, and lint does not report it there",
            where=Location(str(log.module.source.path), line),
            advice="remove the allowance",
        )
        yield str(log.module.source.path), line, line, column, finding


def _exhausted(module: ModuleInfo, title: str, node: object) -> tuple[str, int, int, int, Finding]:
    line = int(getattr(node, "lineno", 1))
    finding = Finding(
        "GC990",
        f"{title} was not read to its end: it is too large or too deeply nested",
        Severity.WARNING,
        Location(str(module.source.path), line),
        advice="split the region, or verify it with graphcheck fuzz",
    )
    return str(module.source.path), line, line, 1, finding
