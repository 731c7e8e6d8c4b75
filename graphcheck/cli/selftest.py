"""``selftest``: plants every defect of the zoo on this machine and says which checks are live."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from graphcheck.cli import destination
from graphcheck.cli.present import console
from graphcheck.cli.run import BACKENDS
from graphcheck.cli.runners import runners


@click.command()
@click.option("--backend", type=click.Choice(BACKENDS), default="auto", show_default=True)
@click.option("--examples", type=click.IntRange(min=1), default=30, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--only", help="Entries whose code or name starts with this.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Entries planted at a time.")
@click.option("--json", "json_file", type=destination.FILE, help="Write the table as JSON.")
def selftest(backend: str, examples: int, seed: int, only: str | None, jobs: int, json_file: Path | None) -> int:
    """Plant every defect of the zoo and its clean twin; exit 1 if a check that should be live is not."""
    from graphcheck.cli.planting import planted
    from graphcheck.zoo import entries
    from graphcheck.zoo.rows import MaskedSum

    chosen = [
        entry for entry in entries() if only is None or entry.code.startswith(only) or entry.name.startswith(only)
    ]
    out = console()
    rows = []
    with runners(backend) as runner_for:
        about = runner_for(MaskedSum(), "").environment()
        out.print(f"{'code':7} {'entry':44} {'found':6} {'first code':11} {'twin':8} seconds")
        for row in planted(chosen, runner_for, backend, examples, seed, jobs):
            rows.append(row)
            if row.skipped:
                out.print(f"{row.code:7} {row.name:44} not run  {row.skipped}")
                continue
            out.print(
                f"{row.code:7} {row.name:44} {'yes' if row.found else 'NO':6} {row.first or '-':11} "
                f"{'silent' if row.silent else 'NOISY':8} {row.seconds:.1f}" + ("" if row.right else f"  {row.words}")
            )
    order = {entry.name: place for place, entry in enumerate(chosen)}
    rows.sort(key=lambda row: order[row.name])
    tried = [row for row in rows if not row.skipped]
    wrong = [row for row in tried if not row.right]
    codes = {row.code for row in tried}
    out.print(
        f"\n{len(tried)} planted ({len(codes)} codes): {sum(row.found for row in tried)} found, "
        f"{sum(row.first == row.code for row in tried)} with the cause first, "
        f"{sum(row.silent for row in tried)} twins silent; {len(rows) - len(tried)} not run here"
    )
    live = sorted(codes - {row.code for row in wrong})
    out.print(f"live here: {', '.join(live) or 'none'}")
    if wrong:
        out.print(f"not live, or not rightly: {', '.join(sorted({row.code for row in wrong}))}")
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        table = {
            "schema": "graphcheck-selftest/1",
            "environment": about,
            "examples": examples,
            "seed": seed,
            "rows": [asdict(row) for row in rows],
        }
        json_file.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
    return int(not tried or bool(wrong))
