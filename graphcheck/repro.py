"""Repro files: a shrunk failing plan as JSON, written, loaded and run again."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphcheck.component import Component
from graphcheck.errors import MalformedFile
from graphcheck.finding import Finding
from graphcheck.plan import Plan
from graphcheck.report import Report
from graphcheck.runner import Runner

SCHEMA = "graphcheck-repro/1"


@dataclass(frozen=True)
class Repro:
    """What a repro file holds.

    Args:
        target: what to load, as `graphcheck fuzz` was given it.
        backend: where it failed.
        plan: the shrunk plan, exactly as it ran.
        codes: the codes found, cause first.
        threads: CPU threads it ran with.
        message: the leading finding, for the reader.
        tokens: the longest request of the trace that the component was sized for, if there was one.
    """

    target: str
    backend: str
    plan: Plan
    codes: tuple[str, ...]
    threads: int = 1
    message: str = ""
    tokens: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "target": self.target,
            "backend": self.backend,
            "codes": list(self.codes),
            "message": self.message,
            "threads": self.threads,
            "tokens": self.tokens,
            "plan": self.plan.to_json(),
        }


def write(
    folder: Path, target: str, backend: str, plan: Plan, findings: list[Finding], tokens: int | None = None
) -> Path:
    """Write a repro file into ``folder`` (made if need be), named after the target and the leading code."""
    codes = tuple(dict.fromkeys(finding.code for finding in findings))
    repro = Repro(target, backend, plan, codes, message=findings[0].message if findings else "", tokens=tokens)
    path = folder / f"{_stem(target)}-{codes[0] if codes else 'plan'}.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(repro.to_json(), indent=2) + "\n", encoding="utf-8")
    return path


def kept(folder: Path, target: str) -> list[Path]:
    """The repro files of a target in ``folder``, in the order of their names."""
    return sorted(folder.glob(f"{_stem(target)}-GC*.json"))


def _stem(target: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", target).strip("-.") or "component"


def load(path: Path | str) -> Repro:
    """The repro file at ``path``.

    Raises:
        MalformedFile: it cannot be read or is no repro file.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise MalformedFile(f"cannot read the repro file {path}: {error.strerror}") from error
    except ValueError as error:
        raise MalformedFile(f"{path} is no JSON ({error}); expected a file that graphcheck fuzz wrote") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise MalformedFile(f"{path} is no repro file of schema {SCHEMA}; expected a file that graphcheck fuzz wrote")
    wrong = [key for key in ("target", "backend") if not isinstance(data.get(key), str)]
    if wrong or not isinstance(data.get("codes", []), list):
        raise MalformedFile(f"{path} lacks {', '.join(wrong) or 'codes'}; regenerate it with graphcheck fuzz")
    try:
        plan = Plan.from_json(data.get("plan"))
    except MalformedFile as error:
        raise MalformedFile(f"{path}: {error}") from error
    return Repro(
        target=data["target"],
        backend=data["backend"],
        plan=plan,
        codes=tuple(map(str, data.get("codes", []))),
        threads=int(data.get("threads", 1)),
        message=str(data.get("message", "")),
        tokens=data["tokens"] if isinstance(data.get("tokens"), int) else None,
    )


def component_of(repro: Repro) -> Component:
    """The component that a repro file names, sized as it was.

    Raises:
        UnknownTarget: it is not to be found here.
    """
    from graphcheck.registry import resolve

    component: Any = resolve(repro.target)
    made: Component = component if repro.tokens is None else component.for_trace(repro.tokens)
    return made


def replay(path: Path | str, backend: str | None = None, runner: Runner | None = None) -> Report:
    """Run a repro file again: the report fails if the plan still does.

    Args:
        path: the file.
        backend: instead of where it failed.
        runner: where the plan runs, instead of in this process; the caller closes it.

    Raises:
        MalformedFile: it is no repro file.
        UnknownTarget: its component is not to be found here.
    """
    from graphcheck.checker import check

    repro = load(path)
    return check(component_of(repro), repro.plan, backend=backend or repro.backend, target=repro.target, runner=runner)
