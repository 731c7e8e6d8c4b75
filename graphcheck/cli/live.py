"""The live line of a long run: redrawn on a terminal, now and then a plain line elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.live import Live as RichLive
from rich.text import Text

from graphcheck.cli.reader import ProgressConsole

if TYPE_CHECKING:
    from graphcheck.fuzzer import Progress

_EVERY = 15.0


class Live:
    """Shows where a search stands, on stderr.

    Args:
        target: what is searched.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._console = ProgressConsole(file=sys.stderr)
        self._live = RichLive(console=self._console, transient=True, refresh_per_second=8)
        self._last = time.perf_counter()

    def __enter__(self) -> Live:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def show(self, progress: Progress) -> None:
        """Show the state of the search."""
        if self._console.is_terminal:
            self._live.update(Text(self._line(progress)))
        elif time.perf_counter() - self._last > _EVERY:
            self._last = time.perf_counter()
            self._console.print(self._line(progress), highlight=False)

    def _line(self, progress: Progress) -> str:
        rate = progress.replays / progress.seconds if progress.seconds else 0.0
        return (
            f"{self._target}: {progress.phase}, {progress.plans} plans, {progress.replays} replays "
            f"({rate:.0f}/s), {progress.findings} findings, {progress.seconds:.0f} s"
        )
