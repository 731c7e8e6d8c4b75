"""``inspect``: what a captured graph consists of and what its arguments point at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphcheck.cli import destination
from graphcheck.cli.case import read_case
from graphcheck.cli.present import console, show_finding
from graphcheck.errors import MalformedFile

if TYPE_CHECKING:
    from graphcheck.graph.nodes import Node

_SHOWN = 400


@click.command()
@click.argument("target")
@click.option("--case", "text", help="Capture case: JSON, or @FILE (default: one that the component draws).")
@click.option("--dot", type=destination.FILE, help="Draw the graph in Graphviz' language.")
@click.option("--json", "json_file", type=destination.FILE, help="Write nodes, classes and findings as JSON.")
@click.option(
    "--against",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="JSON that inspect wrote on another rank: the graphs must be alike (GC902); repeatable.",
)
@click.option("--nodes", type=click.IntRange(min=0), default=_SHOWN, show_default=True, help="Rows of the node table.")
def inspect(
    target: str, text: str | None, dot: Path | None, json_file: Path | None, against: tuple[Path, ...], nodes: int
) -> int:
    """Capture TARGET once and show its nodes, the class of every pointer argument, memory nodes and host copies."""
    from graphcheck.graph.nodes import dot as drawn
    from graphcheck.graph.ranks import unlike
    from graphcheck.inspector import inspect as run
    from graphcheck.registry import resolve
    from graphcheck.strategies import sample

    others = {path.stem: _nodes_of(path) for path in against}
    component = resolve(target)
    case = read_case("--case", text) if text is not None else sample(component)
    found = run(component, case, target=target)
    found.findings += unlike({target: found.nodes, **others})
    out = console()
    out.print(f"{target} captured at {case}", soft_wrap=True)
    for row in found.rows()[:nodes]:
        out.print("  ".join(cell for cell in row if cell), soft_wrap=True)
    if len(found.nodes) > nodes:
        out.print(f"... {len(found.nodes) - nodes} more nodes (--nodes, --json)")
    out.print(", ".join(f"{count} {name}" for name, count in found.counts().items()), soft_wrap=True)
    out.print(f"digest {found.digest}")
    for finding in found.findings:
        show_finding(out, finding)
    if dot is not None:
        dot.parent.mkdir(parents=True, exist_ok=True)
        dot.write_text(drawn(found.nodes), encoding="utf-8")
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(found.to_json(), indent=1) + "\n", encoding="utf-8")
    return found.exit_code


def _nodes_of(path: Path) -> list[Node]:
    """The nodes in a file that inspect wrote.

    Raises:
        MalformedFile: it is no such file.
    """
    from graphcheck.graph.nodes import Node

    try:
        return [Node.from_json(node) for node in json.loads(path.read_text(encoding="utf-8"))["nodes"]]
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedFile(
            f"{path} holds no node table ({error!r}); write it with graphcheck inspect --json"
        ) from error
