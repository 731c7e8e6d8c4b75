"""One child process and the pipe to it; and the nursery that children come from."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from typing import Any

from graphcheck.worker.serving import Answer, serve

# A server process that has imported everything, but has no device context; children are forked from it.
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["graphcheck.worker.serving"])


class Died(Exception):
    """The child is gone or does not answer; says how, and what it said last."""

    def __init__(self, how: str, last_words: str = "") -> None:
        super().__init__(how)
        self.last_words = last_words


class Child:
    """One child process."""

    def __init__(self) -> None:
        # A device assertion writes a line for each thread; only the first is worth showing.
        handle, self._said = tempfile.mkstemp(prefix="graphcheck-child-")
        os.close(handle)
        self._pipe, theirs = _SERVER.Pipe()
        self._process = _SERVER.Process(target=serve, args=(theirs, self._said), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, request: tuple[Any, ...], limit: float) -> Answer:
        """Send a request and wait for its answer.

        Raises:
            Died: the child crashed, or did not answer within ``limit`` seconds and was ended.
        """
        try:
            self._pipe.send(request)
            if not self._pipe.poll(limit):
                self.end()
                raise Died(f"no answer within {limit:.0f} seconds: it hangs")
            answer: Answer = self._pipe.recv()
            return answer
        except (EOFError, OSError) as error:
            said = self.last_words()
            # The pipe breaks a moment before the process can be waited for.
            self._process.join(5.0)
            status = self._process.exitcode
            self.end()
            how = signal.Signals(-status).name if status is not None and status < 0 else f"exit status {status}"
            raise Died(f"the process died ({how})", said) from error
        except KeyboardInterrupt:
            # An answer that comes later would be taken for that of the next request.
            self.end()
            raise

    def last_words(self) -> str:
        """The first line that the child wrote to stderr about an assertion, else its last line."""
        try:
            with open(self._said, encoding="utf-8", errors="replace") as file:
                lines = [line.rstrip() for line in file if line.strip()]
        except OSError:
            return ""
        return next((line for line in lines if "ssertion" in line), lines[-1] if lines else "")[:400]

    def end(self) -> None:
        """End the process, wait for it, and drop what it wrote."""
        self._process.kill()
        self._process.join()
        self._pipe.close()
        if os.path.exists(self._said):
            os.unlink(self._said)


class Nursery:
    """Keeps one child over several targets, as long as its device context is sound."""

    def __init__(self) -> None:
        self.current: Child | None = None
        # Whose component the child at work holds.
        self.owner: object = None

    def child(self) -> Child:
        """The child at work; a fresh one if the last was lost."""
        if self.current is None:
            self.current = Child()
        return self.current

    def drop(self) -> None:
        """End a child whose device context is spoilt."""
        if self.current is not None:
            self.current.end()
            self.current = None

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *raised: object) -> None:
        self.drop()
