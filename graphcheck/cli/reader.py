"""Whoever reads what a command writes, and may leave before its end, as ``| head`` does.

click and rich exit with 1 then, which says findings.
"""

from __future__ import annotations

import os
import select
import sys
from typing import Any, TextIO

import click
from rich.console import Console

# As a shell reports a process that writes to a pipe without a reader: 128 and SIGPIPE.
READER_LEFT = 141


def has_reader(stream: TextIO) -> bool:
    """Whether somebody may still read what is written to a stream."""
    try:
        file = stream.fileno()
    except OSError:
        return True
    watch = select.poll()
    watch.register(file, 0)
    return not any(event & select.POLLERR for _, event in watch.poll(0))


def to_nowhere(stream: TextIO) -> None:
    """Have what is still to be written to a stream go nowhere: Python writes it when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class ResultConsole(Console):
    """A console for results, without which there is nothing left to do: `Commands` ends the command."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(f"nobody reads {self.file.name}")


class ProgressConsole(Console):
    """A console for progress, which nobody has to look at."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        to_nowhere(sys.stderr)


class Commands(click.Group):
    """Commands that end with `READER_LEFT` when nobody reads their results any more."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
            return code
        except BrokenPipeError as error:
            if has_reader(sys.stdout):
                raise RuntimeError(f"a pipe between processes broke: {error}") from error
            to_nowhere(sys.stdout)
            raise click.exceptions.Exit(READER_LEFT) from None
