"""Where a command's plans run: in this process on the emulator, in child processes on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphcheck.component import Component
    from graphcheck.runner import Runner

    MakeRunner = Callable[[Component, str], Runner]

PLAN_LIMIT = 120.0


@contextmanager
def runners(backend: str, plan_limit: float | None = None) -> Iterator[MakeRunner]:
    """What makes a runner for a component and its target; child processes end with the block.

    Args:
        backend: ``auto``, ``cuda`` or ``emulator``.
        plan_limit: seconds that one plan may take on a GPU; None for the default.

    Raises:
        EnvironmentUnable: ``cuda`` is asked for, and there is no GPU.
    """
    from graphcheck.backend import wants_gpu

    if not wants_gpu(backend):
        from graphcheck.runner import LocalRunner

        yield lambda component, target: LocalRunner(component, backend)
        return
    from graphcheck.worker import IsolatedRunner, Nursery

    limit = PLAN_LIMIT if plan_limit is None else plan_limit
    with Nursery() as nursery:
        yield lambda component, target: IsolatedRunner(component, backend, nursery, target=target, limit=limit)
