"""``python -m eagle3.generate``: text of the byte-level pair, speculative or not, from graphs or eagerly."""

from __future__ import annotations

import codecs
from dataclasses import replace
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.table import Table

from eagle3.engine import Engine
from eagle3.errors import CheckpointFormat, Eagle3Error, RequirementMissing
from eagle3.lengths import extra_kv_tokens
from eagle3.m3.config import BYTES, END, TargetConfig
from eagle3.m3.pair_files import STORED, Pair, load_pair
from eagle3.m3.successor import successor_pair
from eagle3.pace import Pace
from eagle3.refusals import BACKENDS, MOST_QO_LEN
from eagle3.text import Generated
from msa.errors import MsaError


class Refused(click.ClickException):
    """The command cannot do what it was told."""

    exit_code = 2


class Unable(click.ClickException):
    """This machine cannot do what was asked for."""

    exit_code = 3


class Voice:
    """Writes the bytes of one request to stdout as they come.

    Args:
        request: whose.
        pace: told of every step too.
    """

    def __init__(self, request: int, pace: Pace) -> None:
        self._request, self._pace, self._said = request, pace, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def __call__(self, engine: Engine) -> None:
        """A step has ended."""
        self._pace(engine)
        tokens = engine.texts[self._request].tokens
        new, self._said = tokens[self._said :], len(tokens)
        click.echo(self._decoder.decode(bytes(token for token in new if token < BYTES)), nl=False)

    def finish(self) -> None:
        """Nothing is held back."""
        click.echo(self._decoder.decode(b"", final=True))


@click.command(context_settings={"show_default": True})
@click.option("--pair", "folder", type=click.Path(path_type=Path), default=STORED, help="Folder of a trained pair.")
@click.option("--random", "untrained", is_flag=True, help="Take a tiny untrained pair, which counts bytes upwards.")
@click.option("--prompt", help="Text to go on from.  [default: def ]")
@click.option("--prompt-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="File that holds it.")
@click.option("--tokens", type=click.IntRange(1), default=200, help="Bytes to generate, fewer if the text ends before.")
@click.option("--draft-len", type=click.IntRange(0, MOST_QO_LEN - 1), default=3, help="Drafts per step, 0 for none.")
@click.option("--graphs/--eager", default=None, help="Replay steps from a CUDA graph; by default where there is a GPU.")
@click.option("--backend", type=click.Choice(BACKENDS), default="msa", help="Plan steps on the device or on the host.")
@click.option(
    "--kernels", type=click.Choice(("portable", "triton")), help="Of all operators; triton on a GPU by default."
)
@click.option("--device", type=click.Choice(("cpu", "cuda")), help="cuda where there is a GPU, else cpu, by default.")
@click.option("--batch", type=click.IntRange(1), default=1, help="Requests with this prompt at a time; one is shown.")
def main(
    folder: Path,
    untrained: bool,
    prompt: str | None,
    prompt_file: Path | None,
    tokens: int,
    draft_len: int,
    graphs: bool | None,
    backend: str,
    kernels: str | None,
    device: str | None,
    batch: int,
) -> None:
    """Go on from a prompt. Text goes to stdout as it comes, then what was measured to stderr."""
    start = _prompt(prompt, prompt_file)
    device = _device(device, graphs)
    graphs = (device == "cuda" and backend == "msa") if graphs is None else graphs
    kernels = kernels or ("triton" if device == "cuda" else "portable")
    if kernels == "triton" and device == "cpu":
        raise Refused("Triton kernels run on a GPU only; take --kernels portable")
    try:
        pair = _pair(folder, untrained, kernels, device)
        _check_length(pair.target.config, len(start), tokens, draft_len)
        engine = Engine(
            pair.target,
            pair.head,
            draft_len=draft_len,
            max_batch=batch,
            max_seq_len=len(start) + tokens,
            graphs=graphs,
            backend=backend,
            kernels=kernels,
        )
        if device == "cuda":
            # Kernels are compiled at their first launch, which is no part of the speed.
            engine.generate([start] * batch, min(tokens, 2 + draft_len))
        pace = Pace()
        voice = Voice(0, pace)
        generated = engine.generate([start] * batch, tokens, stop=(END,), progress=voice)
        voice.finish()
    except RequirementMissing as error:
        raise Unable(str(error)) from error
    except (Eagle3Error, MsaError) as error:
        raise Refused(str(error)) from error
    Console(stderr=True).print(_summary(generated, pace, draft_len))


def _prompt(given: str | None, file: Path | None) -> list[int]:
    if given is not None and file is not None:
        raise Refused("--prompt and --prompt-file exclude each other; give one of them")
    start = file.read_bytes() if file is not None else ("def " if given is None else given).encode()
    if not start:
        raise Refused("the prompt is empty; give at least one byte to go on from")
    return list(start)


def _device(asked: str | None, graphs: bool | None) -> str:
    if torch.cuda.is_available():
        if graphs and asked == "cpu":
            raise Refused("--graphs with --device cpu: there are CUDA graphs on a GPU only; take --eager")
        return asked or "cuda"
    if graphs or asked == "cuda":
        what = "--graphs" if graphs else "--device cuda"
        raise Unable(f"{what} needs an NVIDIA GPU and a CUDA build of torch; take --eager --device cpu")
    return "cpu"


def _pair(folder: Path, untrained: bool, kernels: str, device: str) -> Pair:
    # The CPU is many times faster in fp32.
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    if untrained:
        config = replace(TargetConfig.tiny(), max_seq_len=TargetConfig.max_seq_len)
        return successor_pair(config, device, kernels=kernels, dtype=dtype)
    try:
        return load_pair(folder, kernels, device, dtype)
    except CheckpointFormat as error:
        raise CheckpointFormat(f"{error}, or take an untrained one with --random") from error


def _check_length(config: TargetConfig, prompt: int, tokens: int, draft_len: int) -> None:
    room = config.max_seq_len - 1 - draft_len - extra_kv_tokens(draft_len)
    if prompt + tokens > room:
        raise Refused(
            f"a prompt of {prompt} bytes and {tokens} more are longer than the {room} that this pair has positions for; "
            "shorten the prompt or lower --tokens"
        )


def _summary(generated: Generated, pace: Pace, draft_len: int) -> Table:
    """What was measured, as a table."""
    table = Table(show_header=False, box=None)
    table.add_row("tokens per second", f"{pace.tokens_per_second:.1f}" if pace.seconds else "-")
    acceptance = generated.acceptance
    if draft_len and acceptance.steps:
        table.add_row("acceptance rate (AR)", f"{acceptance.rate:.3f}")
        table.add_row("acceptance length (AL)", f"{acceptance.length:.3f}")
    table.add_row("steps", f"{generated.steps}, {generated.replayed} of them graphs")
    return table


if __name__ == "__main__":
    main()
