"""``explain``: the page of one code."""

from __future__ import annotations

import click
from rich.text import Text

from graphcheck.catalogue import lookup
from graphcheck.catalogue.pages import sections
from graphcheck.cli.present import console


@click.command()
@click.argument("code")
def explain(code: str) -> int:
    """The rule's page of CODE, for instance GC302."""
    entry = lookup(code)
    out = console()
    out.print(Text(f"{entry.code}  {entry.name}", style="bold"))
    for label, lines in sections(entry):
        out.print(Text(f"\n{label}", style="dim"))
        for line in lines:
            out.print(f"  {line}")
    return 0
