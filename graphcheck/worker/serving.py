"""The child's side: takes a component, carries out requests for it, and sends what its work raised."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

# Imported here, where nobody waits, because the first operator of a dispatch mode would.
import torch._dynamo  # noqa: F401

import graphcheck.backend.emulator  # noqa: F401
from graphcheck import registry, runner
from graphcheck.cases import Case
from graphcheck.component import Component
from graphcheck.errors import ComponentRaised, GraphcheckError, UsageError
from graphcheck.finding import Location, exception_location
from graphcheck.plan import Plan

_CRASH_WORDS = ("illegal memory access", "device-side assert", "unspecified launch failure", "misaligned address")


@dataclass(frozen=True)
class Raised:
    """What the child's work raised.

    Args:
        error: the exception, or its words where it cannot be sent.
        words: the first line of what it says.
        sticky: the child's device context is no longer usable.
        exhausted: the device ran out of memory.
        where: the component's own line.
    """

    error: BaseException
    words: str
    sticky: bool
    exhausted: bool
    where: Location | None


@dataclass(frozen=True)
class Answer:
    """What the child sends.

    Args:
        value: the result of its work, or what that raised.
        sound: the child is fit for further work.
    """

    value: Any
    sound: bool = True


def serve(pipe: Connection, said: str) -> None:
    """The child's loop: take a component, then carry out requests for it until the pipe closes.

    Args:
        pipe: to the parent.
        said: file that takes what is written to stderr.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(said, "wb", buffering=0) as file:
        os.dup2(file.fileno(), sys.stderr.fileno() if sys.stderr is not None else 2)
    working: runner.LocalRunner | None = None
    while True:
        try:
            kind, *arguments = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            if kind == "load":
                target, pickled, backend = arguments
                made = registry.resolve(target) if target else None
                working = runner.LocalRunner(pickle.loads(pickled) if pickled else _made(made), backend)
                pipe.send(Answer((working.backend_name, working.pool_options, working.environment())))
            elif working is not None:
                answer = _carry_out(working, kind, arguments)
                pipe.send(Answer(answer, working.sound()))
        except Exception as error:
            pipe.send(Answer(_raised(error)))


def _raised(error: Exception) -> Raised:
    cause = error.cause if isinstance(error, ComponentRaised) else error
    where = error.where if isinstance(error, ComponentRaised) else exception_location(error)
    words = (str(cause).strip() or type(cause).__name__).splitlines()[0]
    return Raised(_portable(error), words, _is_sticky(error), _is_exhausted(cause), where)


def _made(component: Component | None) -> Component:
    if component is None:
        raise UsageError("the component can neither be sent to a child process nor made again")
    return component


def _carry_out(runner: Any, kind: str, arguments: list[Any]) -> Any:
    if kind == "run":
        outcome = runner.run(Plan.from_json(arguments[0]), arguments[1])
        # An error of the last launch shows only now, and belongs to this plan.
        runner.synchronize()
        return outcome
    if kind == "explain":
        return runner.explain(Plan.from_json(arguments[0]), arguments[1])
    return runner.influence([Case.from_json(case) for case in arguments[0]])


def _is_sticky(error: BaseException) -> bool:
    """Whether the device context is lost: nothing in this process can use it any more."""
    text = "".join(traceback.format_exception(error)).lower()
    return any(words in text for words in _CRASH_WORDS)


def _is_exhausted(error: BaseException) -> bool:
    """Whether the device ran out of memory."""
    chain: BaseException | None = error
    while chain is not None:
        if type(chain).__name__ == "OutOfMemoryError" or "out of memory" in str(chain).lower():
            return True
        chain = chain.__cause__
    return False


def _portable(error: BaseException) -> BaseException:
    """The error itself where it survives pickling, else its words."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return GraphcheckError(f"{type(error).__name__}: {error}")
    return error
