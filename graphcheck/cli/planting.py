"""Rows of the self-test: entries of the zoo planted one after the other, or in several processes at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from multiprocessing import get_context, util
from typing import TYPE_CHECKING

from graphcheck.cli.runners import runners
from graphcheck.errors import EnvironmentUnable

if TYPE_CHECKING:
    from graphcheck.cli.runners import MakeRunner
    from graphcheck.selftest import Row
    from graphcheck.zoo import Entry


def planted(
    entries: Sequence[Entry], runner_for: MakeRunner, backend: str, examples: int, seed: int, jobs: int
) -> Iterator[Row]:
    """One row for each entry: in order with one job, else as they are ready.

    Args:
        entries: of the zoo.
        runner_for: where plans run with one job.
        backend: ``auto``, ``cuda`` or ``emulator``: what other processes make their runners for.
        examples, seed: of each search.
        jobs: processes.

    Raises:
        EnvironmentUnable: a process died.
    """
    if jobs == 1:
        from graphcheck.selftest import plant

        yield from (plant(entry, runner_for, examples, seed) for entry in entries)
        return
    # Spawned, not forked: a process that has loaded torch cannot be copied safely.
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (backend,))
    try:
        pending = {pool.submit(_plant, entry.name, examples, seed): entry for entry in entries}
        for done in as_completed(pending):
            try:
                yield done.result()
            except BrokenProcessPool as error:
                raise EnvironmentUnable(
                    f"a process of the self-test died while it planted {pending[done].name} or an entry beside it; "
                    "run it with --jobs 1 to see which"
                ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_held: list[MakeRunner] = []


def _begin(backend: str) -> None:
    """A process of the pool has its own runners, until it ends."""
    stack = ExitStack()
    _held.append(stack.enter_context(runners(backend)))
    util.Finalize(None, stack.close, exitpriority=10)


def _plant(name: str, examples: int, seed: int) -> Row:
    from graphcheck.selftest import plant
    from graphcheck.zoo import entries

    entry = next(entry for entry in entries() if entry.name == name)
    return plant(entry, _held[0], examples, seed)
