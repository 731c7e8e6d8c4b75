"""Whoever reads what a command writes, and may leave before its end, as ``| head`` does.

click and rich exit with 1 then, which says findings.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import click
from rich.console import Console

# As a shell reports a process that writes to a pipe without a reader: 128 and SIGPIPE.
READER_LEFT = 141


def to_nowhere(stream: TextIO) -> None:
    """Have what is still to be written to a stream go nowhere: Python writes it when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def tell(words: str) -> None:
    """One line on stderr, for whoever reads it."""
    try:
        click.echo(f"graphcheck: {' '.join(words.split())}", err=True)
    except BrokenPipeError:
        to_nowhere(sys.stderr)


class ResultConsole(Console):
    """A console for results, without which there is nothing left to do: `Commands` ends the command."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError("nobody reads the results")


class ProgressConsole(Console):
    """A console for progress, which nobody has to look at."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        to_nowhere(sys.stderr)


class Commands(click.Group):
    """Commands, and their help, that end with `READER_LEFT` when nobody reads what they say any more."""

    def make_context(self, *given: Any, **options: Any) -> click.Context:
        with _reader():
            return super().make_context(*given, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with _reader():
            return super().invoke(ctx)


@contextmanager
def _reader() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        if _has_reader(sys.stdout):
            raise RuntimeError(f"a pipe between processes broke: {error}") from error
        to_nowhere(sys.stdout)
        raise click.exceptions.Exit(READER_LEFT) from None


def _has_reader(stream: TextIO) -> bool:
    """Whether somebody may still read what is written to a stream."""
    try:
        file = stream.fileno()
    except OSError:
        return True
    watch = select.poll()
    watch.register(file, 0)
    return not any(event & select.POLLERR for _, event in watch.poll(0))
