"""``bench``: eager against replay, and the verified loop beside the executions that it needs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from graphcheck.cli import destination
from graphcheck.cli.case import read_case
from graphcheck.cli.present import console
from graphcheck.cli.run import BACKENDS

_MILLISECONDS = ("eager", "eager_engine", "replay", "cpu", "bound", "step", "plan_of_two")
_RATIOS = ("eager_over_replay", "replay_over_cpu", "share", "verified_replays_per_second")


@click.command()
@click.argument("target")
@click.option("--backend", type=click.Choice(BACKENDS), default="auto", show_default=True)
@click.option("--case", "text", help="Case of every step: JSON, or @FILE (default: one that the component draws).")
@click.option("--repeats", type=click.IntRange(min=3), default=30, show_default=True)
@click.option("--json", "json_file", type=destination.FILE, help="Write the figures as JSON.")
def bench(target: str, backend: str, text: str | None, repeats: int, json_file: Path | None) -> int:
    """Time TARGET: eager, replay, one verified step, and what each rung adds to a plan."""
    from graphcheck.bench import bench as run
    from graphcheck.registry import resolve
    from graphcheck.strategies import sample

    component = resolve(target)
    case = read_case("--case", text) if text is not None else sample(component)
    found = run(component, case, backend=backend, repeats=repeats)
    out = console()
    out.print(f"{target} on {found['backend']}, every step at {found['case']}")
    for name in _MILLISECONDS:
        if name in found:
            out.print(f"{name:28} {found[name] * 1e3:10.3f} ms")
    for rung, extra in found["rungs"].items():
        out.print(f"{'rung ' + rung:28} {extra * 1e3:+10.3f} ms on a plan of two replays")
    for name in _RATIOS:
        if name in found:
            out.print(f"{name:28} {found[name]:10.2f}")
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0
