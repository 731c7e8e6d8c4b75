"""Isolation: plans run in a child process that may crash, hang or run out of memory without taking the search along.

The parent never touches the device. One spare child is kept imported, but without a device context, so that a crash
costs no start-up time.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from graphcheck.cases import Case
from graphcheck.component import Component
from graphcheck.errors import GraphcheckError, UsageError
from graphcheck.finding import Finding
from graphcheck.oracle.lockstep import Options
from graphcheck.oracle.symptom import Kind, Outcome, Symptom
from graphcheck.plan import Plan

_CRASH_WORDS = ("illegal memory access", "device-side assert", "unspecified launch failure", "misaligned address")


class _Died(Exception):
    """The child is gone or does not answer; says how."""


@dataclass(frozen=True)
class _Raised:
    """What the child's work raised; sticky if its device context is no longer usable."""

    error: BaseException
    sticky: bool


class Child:
    """One child process and the pipe to it."""

    def __init__(self) -> None:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        code = f"from graphcheck.worker import serve; serve({theirs_in}, {theirs_out})"
        # -P is not set: the child must see the same modules as this process, whatever started it.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], pass_fds=(theirs_in, theirs_out), env=environment, stdin=subprocess.DEVNULL
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._answers = Connection(ours_in, writable=False)
        self._requests = Connection(ours_out, readable=False)

    def ask(self, request: tuple[Any, ...], limit: float | None) -> Any:
        """Send a request and wait for its answer.

        Raises:
            _Died: the child crashed, or did not answer within ``limit`` seconds and was ended.
        """
        try:
            self._requests.send(request)
            if not self._answers.poll(limit):
                self.end()
                raise _Died(f"no answer within {limit:.0f} seconds: it hangs")
            return self._answers.recv()
        except (EOFError, OSError) as error:
            self.end()
            status = self._process.returncode
            how = signal.Signals(-status).name if status is not None and status < 0 else f"exit status {status}"
            raise _Died(f"the process died ({how})") from error

    def end(self) -> None:
        """End the process and wait for it."""
        self._process.kill()
        self._process.wait()
        self._answers.close()
        self._requests.close()


class IsolatedRunner:
    """Runs a component in a child process.

    Args:
        component: picklable, never allocated.
        backend: ``cuda`` or ``emulator``.
        limit: seconds that one plan may take.
        crashes: plans at most that may crash the child before shrinking gives up on further ones.

    Raises:
        UsageError: the component cannot be sent to another process.
    """

    def __init__(self, component: Component, backend: str, limit: float = 120.0, crashes: int = 40) -> None:
        self.backend_name = backend
        try:
            self._pickled = pickle.dumps(component)
        except Exception as error:
            raise UsageError(
                f"{component.title} cannot be sent to a child process ({error}); define it at module level, "
                "or run it without isolation"
            ) from error
        self._limit = limit
        self._crashes_left = crashes
        self._child: Child | None = None
        self._spare: Child | None = Child()

    def run(self, plan: Plan, options: Options) -> Outcome:
        if self._crashes_left <= 0:
            return Outcome()
        try:
            answer = self._ask("run", plan.to_json(), options)
        except _Died as death:
            self._crashes_left -= 1
            return _crash(str(death))
        if isinstance(answer, _Raised):
            if isinstance(answer.error, GraphcheckError) and not answer.sticky:
                raise answer.error
            self._drop()
            if answer.sticky:
                self._crashes_left -= 1
            return _crash(str(answer.error).strip().splitlines()[0])
        outcome: Outcome = answer
        return outcome

    def explain(self, plan: Plan, outcome: Outcome) -> list[Finding]:
        """The cause; of a plan that crashes only the crash itself, since an intervention would crash as well."""
        if outcome.of(Kind.CRASH):
            return [symptom.finding for symptom in outcome.symptoms]
        answer = self._answer("explain", plan.to_json(), outcome)
        return answer if isinstance(answer, list) else [symptom.finding for symptom in outcome.symptoms]

    def influence(self, cases: list[Case]) -> list[Finding]:
        answer = self._answer("influence", [case.to_json() for case in cases])
        return answer if isinstance(answer, list) else []

    def close(self) -> None:
        for child in (self._child, self._spare):
            if child is not None:
                child.end()
        self._child = self._spare = None

    def _answer(self, *request: Any) -> Any:
        try:
            answer = self._ask(*request)
        except _Died:
            return None
        if isinstance(answer, _Raised):
            if isinstance(answer.error, GraphcheckError) and not answer.sticky:
                raise answer.error
            self._drop()
            return None
        return answer

    def _ask(self, *request: Any) -> Any:
        if self._child is None:
            self._child = self._spare if self._spare is not None else Child()
            self._spare = Child()
            try:
                loaded = self._child.ask(("load", self._pickled, self.backend_name), self._limit)
            except _Died:
                self._child = None
                raise
            if isinstance(loaded, _Raised):
                self._drop()
                raise loaded.error
        try:
            return self._child.ask(request, self._limit)
        except _Died:
            self._child = None
            raise

    def _drop(self) -> None:
        """End a child whose device context is spoilt."""
        if self._child is not None:
            self._child.end()
            self._child = None


def _crash(words: str) -> Outcome:
    finding = Finding(
        code="GC706",
        message=f"the plan brings the process down: {words}",
        place="a replay or the capture of this plan",
        expected="a plan that finishes, or a case that the component refuses",
        got=words,
        advice="check lengths, page ids and indices against the captured capacity; refuse what does not fit in stage()",
    )
    outcome = Outcome(symptoms=[Symptom(Kind.CRASH, finding)])
    outcome.counts.cases = outcome.counts.replays = 1
    return outcome


def serve(requests: int, answers: int) -> None:
    """The child's loop: load a component once, then carry out requests until the pipe closes.

    Args:
        requests, answers: file descriptors of the two pipes.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    incoming, outgoing = Connection(requests, writable=False), Connection(answers, readable=False)
    runner: Any = None
    while True:
        try:
            kind, *arguments = incoming.recv()
        except (EOFError, OSError):
            return
        try:
            if kind == "load":
                from graphcheck.runner import LocalRunner

                runner = LocalRunner(pickle.loads(arguments[0]), arguments[1])
                outgoing.send(None)
                continue
            outgoing.send(_carry_out(runner, kind, arguments))
        except Exception as error:
            outgoing.send(_Raised(_portable(error), _is_sticky(error)))


def _carry_out(runner: Any, kind: str, arguments: list[Any]) -> Any:
    if kind == "run":
        return runner.run(Plan.from_json(arguments[0]), arguments[1])
    if kind == "explain":
        return runner.explain(Plan.from_json(arguments[0]), arguments[1])
    return runner.influence([Case.from_json(case) for case in arguments[0]])


def _is_sticky(error: BaseException) -> bool:
    """Whether the device context is lost: nothing in this process can use it any more."""
    text = "".join(traceback.format_exception(error)).lower()
    return any(words in text for words in _CRASH_WORDS)


def _portable(error: BaseException) -> BaseException:
    """The error itself where it survives pickling, else its words."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return GraphcheckError(f"{type(error).__name__}: {error}")
    return error
