"""``selftest``: plants every defect of the zoo on this machine and says which checks are live."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from graphcheck.cli import destination
from graphcheck.cli.present import console
from graphcheck.cli.run import BACKENDS


@click.command()
@click.option("--backend", type=click.Choice(BACKENDS), default="auto", show_default=True)
@click.option("--examples", type=click.IntRange(min=1), default=30, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--only", help="Entries whose code or name starts with this.")
@click.option("--json", "json_file", type=destination.FILE, help="Write the table as JSON.")
def selftest(backend: str, examples: int, seed: int, only: str | None, json_file: Path | None) -> int:
    """Plant every defect of the zoo and its clean twin; exit 1 if a check that should be live is not."""
    from graphcheck.selftest import plant
    from graphcheck.zoo import entries

    out = console()
    rows = []
    out.print(f"{'code':7} {'entry':28} {'found':6} {'first code':11} {'twin':8} seconds")
    for entry in entries():
        if only is not None and not (entry.code.startswith(only) or entry.name.startswith(only)):
            continue
        row = plant(entry, backend, examples, seed)
        rows.append(row)
        out.print(
            f"{row.code:7} {row.name:28} {'yes' if row.found else 'NO':6} {row.first or '-':11} "
            f"{'silent' if row.silent else 'NOISY':8} {row.seconds:.1f}"
        )
    right = sum(row.right for row in rows)
    codes = len({row.code for row in rows})
    out.print(f"\n{right} of {len(rows)} entries right, {codes} codes")
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        table = {"schema": "graphcheck-selftest/1", "backend": backend, "rows": [asdict(row) for row in rows]}
        json_file.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
    return 0 if rows and right == len(rows) else 1
