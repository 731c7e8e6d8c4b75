"""``bench``: eager against replay, and verified-replay throughput."""

from __future__ import annotations

import json
from pathlib import Path

import click

from graphcheck.cli import destination
from graphcheck.cli.present import console
from graphcheck.cli.run import BACKENDS


@click.command()
@click.argument("target")
@click.option("--backend", type=click.Choice(BACKENDS), default="auto", show_default=True)
@click.option("--repeats", type=click.IntRange(min=3), default=30, show_default=True)
@click.option("--examples", type=click.IntRange(min=1), default=10, show_default=True)
@click.option("--json", "json_file", type=destination.FILE, help="Write the figures as JSON.")
def bench(target: str, backend: str, repeats: int, examples: int, json_file: Path | None) -> int:
    """Time TARGET: eager, replay, and the verified loop."""
    from graphcheck.bench import bench as run
    from graphcheck.registry import resolve

    found = run(resolve(target), backend=backend, repeats=repeats, examples=examples)
    out = console()
    for name in ("eager", "replay", "cpu"):
        if name in found:
            out.print(f"{name:28} {found[name] * 1e3:10.3f} ms")
    for name in ("eager_over_replay", "replay_over_cpu", "verified_replays_per_second"):
        if name in found:
            out.print(f"{name:28} {found[name]:10.2f}")
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0
