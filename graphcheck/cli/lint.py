"""``lint``: static rules; needs no torch."""

from __future__ import annotations

from pathlib import Path

import click

FORMATS = ("text", "json", "github", "sarif")


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--select", multiple=True, help="Only these codes or prefixes: GC1, GC302. Repeat, or separate by commas."
)
@click.option("--ignore", multiple=True, help="Leave out these codes or prefixes.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
def lint(paths: tuple[Path, ...], select: tuple[str, ...], ignore: tuple[str, ...], form: str) -> int:
    """Find capture hazards in Python source below each PATH, without running it.

    Exit codes: 0 clean (warnings included), 1 errors found, 2 usage. Settings: [tool.graphcheck] in pyproject.toml.
    """
    from graphcheck.lint import lint as run
    from graphcheck.lint import load
    from graphcheck.lint.formats import FORMATS as PRINTERS

    result = run(paths, load(paths[0], select, ignore))
    printed = PRINTERS[form](result)
    if printed:
        click.echo(printed)
    return result.exit_code
