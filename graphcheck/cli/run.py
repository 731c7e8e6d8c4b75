"""``fuzz``, ``check`` and ``replay``: run plans and print what came of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphcheck.cli import destination
from graphcheck.cli.case import read_case
from graphcheck.cli.live import Live
from graphcheck.cli.present import show_header, show_target
from graphcheck.cli.runners import runners
from graphcheck.errors import EnvironmentUnable, UsageError

if TYPE_CHECKING:
    from graphcheck.report import Report

BACKENDS = ("auto", "cuda", "emulator")
INTERRUPTED = 130


def seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """A duration such as ``90``, ``90s``, ``10m`` or ``2h``, in seconds."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", value)
    if match is None or float(match[1]) == 0:
        raise click.BadParameter(f"{value!r} is no duration; write 90s, 10m or 2h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def devices(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """Device numbers; ``all`` is the one device that this version searches on."""
    if value == "all":
        return (0,)
    if re.fullmatch(r"\d+(,\d+)*", value) is None:
        raise click.BadParameter(f"{value!r} names no devices; write all, or numbers such as 0 or 0,1")
    return tuple(int(number) for number in value.split(","))


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options that every command that runs plans takes."""
    for option in reversed(
        (
            click.option("--backend", type=click.Choice(BACKENDS), default="auto", show_default=True),
            click.option("--out", type=destination.FOLDER, help="Folder for repro files."),
            click.option("--json", "json_file", type=destination.FILE, help="Write the report as JSON."),
        )
    ):
        function = option(function)
    return function


@click.command()
@click.argument("targets", nargs=-1, required=True)
@run_options
@click.option("--examples", type=click.IntRange(min=1), help="Plans to try for each target (default 100).")
@click.option("--time", "limit", callback=seconds, help="Stop each target after that long: 90s, 10m, 2h.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same plans.")
@click.option("--trace", type=click.Path(path_type=Path), help="Serving trace (CSV) that gives the lengths.")
@click.option("--database", type=destination.FOLDER, help="Keep failing examples here and replay them first.")
@click.option(
    "--no-database", is_flag=True, help="Keep none, so that runs do not depend on earlier ones (the default)."
)
@click.option(
    "--devices", default="all", show_default=True, callback=devices, help="Devices to spread over: all, or 0,1."
)
@click.option("--plan-limit", callback=seconds, help="A plan that takes longer on a GPU hangs (default 120s).")
@click.option("--engine", type=click.Choice(("local", "ray")), default="local", show_default=True)
def fuzz(
    targets: tuple[str, ...],
    backend: str,
    out: Path | None,
    json_file: Path | None,
    examples: int | None,
    limit: float | None,
    seed: int,
    trace: Path | None,
    database: Path | None,
    no_database: bool,
    devices: tuple[int, ...],
    engine: str,
    plan_limit: float | None,
) -> int:
    """Search for a failing plan of each TARGET.

    TARGET is package.module:Class, path.py:Class or a registered name (graphcheck list).
    """
    if engine != "local" or any(devices):
        raise EnvironmentUnable("this version searches on one device in one process; use --engine local --devices all")
    if no_database and database is not None:
        raise UsageError("--database and --no-database exclude each other; give one of them")
    from graphcheck.fuzzer import fuzz as search
    from graphcheck.registry import resolve
    from graphcheck.report import Report
    from graphcheck.trace import trace_plans

    components = [(target, resolve(target)) for target in targets]
    whole = Report(" ".join(["fuzz", *targets]), {})
    with runners(backend, plan_limit) as runner_for:
        for target, component in components:
            plans = summary = None
            if trace is not None:
                component, plans, summary = trace_plans(component, trace)
            runner = runner_for(component, target)
            if not whole.targets:
                whole.environment = runner.environment()
                show_header(whole.environment)
            with Live(target) as live:
                report = search(
                    component,
                    examples=examples,
                    seconds=limit,
                    seed=seed,
                    database=database,
                    out=out if out is not None else Path(".graphcheck"),
                    plans=plans,
                    target=target,
                    progress=live.show,
                    runner=runner,
                )
            runner.close()
            entry = report.targets[0]
            if summary is not None:
                entry.counts.requests, entry.counts.refused_requests = summary.offered, summary.refused
            show_target(entry)
            whole.targets.append(entry)
            if entry.stopped == "interrupted":
                break
    return _finish(whole, json_file)


@click.command()
@click.argument("target")
@run_options
@click.option("--capture", "captures", multiple=True, required=True, help="Capture case: JSON, or @FILE; repeatable.")
@click.option("--replay", "replays", multiple=True, required=True, help="Replay case: JSON, or @FILE; repeatable.")
@click.option("--warmups", type=click.IntRange(min=0), help="Warm-up runs (default: the component's own).")
def check(
    target: str,
    backend: str,
    out: Path | None,
    json_file: Path | None,
    captures: tuple[str, ...],
    replays: tuple[str, ...],
    warmups: int | None,
) -> int:
    """Run one plan of TARGET: a quick look.

    A case is the JSON that a repro file holds, for instance {"lens": {"lengths": [3, 9], "low": 0, "high": 64}}.
    """
    from graphcheck.checker import check as run
    from graphcheck.plan import Plan
    from graphcheck.registry import resolve

    component = resolve(target)
    plan = Plan(
        captures=tuple(read_case("--capture", text) for text in captures),
        replays=tuple(read_case("--replay", text) for text in replays),
        warmups=component.warmup if warmups is None else warmups,
    )
    with runners(backend) as runner_for:
        report = run(component, plan, target=target, out=out, runner=runner_for(component, target))
    show_header(report.environment)
    show_target(report.targets[0])
    return _finish(report, json_file)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--backend", type=click.Choice(BACKENDS), help="Instead of where it failed.")
@click.option("--json", "json_file", type=destination.FILE, help="Write the report as JSON.")
def replay(file: Path, backend: str | None, json_file: Path | None) -> int:
    """Run a repro FILE: exit 1 if it still fails, 0 if it is fixed."""
    from graphcheck.repro import component_of, load
    from graphcheck.repro import replay as run

    repro = load(file)
    component = component_of(repro)
    with runners(backend or repro.backend) as runner_for:
        report = run(file, runner=runner_for(component, repro.target))
    show_header(report.environment)
    show_target(report.targets[0])
    return _finish(report, json_file)


def _finish(report: Report, json_file: Path | None) -> int:
    if json_file is not None:
        report.write(json_file)
    interrupted = any(entry.stopped == "interrupted" for entry in report.targets)
    if interrupted and not any(entry.counts.plans for entry in report.targets):
        return INTERRUPTED
    return report.exit_code
