"""``python -m eagle3.m3.training``: trains target and head, measures them and writes the files of the pair."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click
import torch

from eagle3.errors import Eagle3Error
from eagle3.m3.config import TargetConfig
from eagle3.m3.training.head_trainer import HeadRecipe
from eagle3.m3.training.pipeline import STAGES, Measures, run
from eagle3.m3.training.target_trainer import TargetRecipe
from eagle3.m3.training.text import LISTING, listing_of, load_text, read_sources, write_archive

_PATH = click.Path(path_type=Path)


@click.command(context_settings={"show_default": True})
@click.option("--out", type=_PATH, help="Folder of the pair; needed to train.")
@click.option(
    "--text", "source", type=_PATH, help="Folder or tar or zip archive of a library; this Python's by default."
)
@click.option("--other-text", is_flag=True, help="Take text that is not the listed one; the log says how it differs.")
@click.option("--stages", default=",".join(STAGES), help="Which stages to run; the others are read from --out.")
@click.option("--device", help="cuda where there is a GPU, else cpu, by default.")
@click.option("--seed", default=0, help="Of weights, batches and prompts.")
@click.option("--target-steps", type=int, help="At most so many steps of the target.")
@click.option("--target-seconds", type=float, help="At most so many seconds for them.")
@click.option("--head-steps", type=int, help="At most so many steps of the head.")
@click.option("--head-seconds", type=float, help="At most so many seconds for them.")
@click.option("--tiny", is_flag=True, help="A target of 32 dimensions in seconds, to see that everything works.")
@click.option(
    "--pack", type=_PATH, help="Write the text to this zip archive instead, for a machine with another Python."
)
@click.option("--write-listing", is_flag=True, help=f"Write what this text is to {LISTING.name} instead.")
def main(
    out: Path | None,
    source: Path | None,
    other_text: bool,
    stages: str,
    device: str | None,
    seed: int,
    target_steps: int | None,
    target_seconds: float | None,
    head_steps: int | None,
    head_seconds: float | None,
    tiny: bool,
    pack: Path | None,
    write_listing: bool,
) -> None:
    """Train the byte-level target and its draft head on CPython's own library sources."""
    try:
        if write_listing:
            LISTING.write_text(listing_of(read_sources(source)), encoding="utf-8")
            click.echo(f"wrote {LISTING}")
            return
        if pack is not None:
            load_text(source, allow_other=other_text)
            write_archive(pack, read_sources(source))
            click.echo(f"wrote {pack}, {pack.stat().st_size} bytes")
            return
        if out is None:
            raise click.UsageError("name a folder with --out")
        chosen = [stage.strip() for stage in stages.split(",")]
        unknown = [stage for stage in chosen if stage not in STAGES]
        if unknown:
            raise click.UsageError(f"no stages {', '.join(unknown)}; there are {', '.join(STAGES)}")
        target = TargetRecipe.tiny() if tiny else TargetRecipe()
        head = HeadRecipe.tiny() if tiny else HeadRecipe()
        target = replace(
            target, seed=seed, steps=target_steps or target.steps, seconds=target_seconds or target.seconds
        )
        head = replace(head, seed=seed, steps=head_steps or head.steps, seconds=head_seconds or head.seconds)
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        text = load_text(source, allow_other=other_text)
        click.echo(f"text  {text.train.shape[0]} tokens to train, {text.held_out.shape[0]} held out, {text.sha256}")
        for line in text.differing:
            click.echo(f"text  {line}")
        run(
            out,
            text,
            TargetConfig.tiny() if tiny else TargetConfig(),
            target,
            head,
            Measures(length=64, windows=16, prompts=8, prompt=32, new_tokens=32) if tiny else Measures(),
            place,
            lambda line: click.echo(line, file=sys.stdout),
            chosen,
            2.0 if tiny else 10.0,
        )
    except Eagle3Error as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
