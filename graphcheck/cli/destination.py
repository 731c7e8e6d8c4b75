"""Where a command writes: refused at the start, before the work whose result could not be kept."""

from __future__ import annotations

import os
from pathlib import Path

import click


class Destination(click.Path):
    """A path that can be written: a file, or a folder that may still have to be made."""

    def __init__(self, folder: bool) -> None:
        super().__init__(file_okay=not folder, dir_okay=folder, path_type=Path)
        self._folder = folder

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        existing = path if self._folder or path.exists() else path.parent
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        if existing.is_dir() == (existing == path and not self._folder) or not os.access(existing, os.W_OK):
            self.fail(f"{str(path)!r} cannot be written, because of {existing}; name another place", param, ctx)
        return path


FILE = Destination(folder=False)
FOLDER = Destination(folder=True)
