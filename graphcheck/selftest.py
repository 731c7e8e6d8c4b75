"""The self-test: is a planted defect found with its cause first, and is its clean twin silent?"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from graphcheck.component import Component
from graphcheck.errors import GraphcheckError
from graphcheck.finding import Severity, Verdict
from graphcheck.fuzzer import fuzz
from graphcheck.runner import Runner
from graphcheck.zoo import Entry


@dataclass(frozen=True)
class Row:
    """What came of one zoo entry.

    Args:
        code, name: of the entry.
        found: the planted defect fails, or warns where the entry says that it only warns.
        first: the code that leads its report.
        silent: the clean twin passes without error or warning.
        words: what the twin said, or what went wrong.
        seconds: wall time of both.
        skipped: why the entry was not planted on this backend; empty where it was.
    """

    code: str
    name: str
    found: bool
    first: str
    silent: bool
    words: str
    seconds: float
    skipped: str = ""

    @property
    def right(self) -> bool:
        """Found, cause first, twin silent; an entry that was not planted is neither right nor wrong."""
        return not self.skipped and self.found and self.first == self.code and self.silent


def plant(entry: Entry, make_runner: Callable[[Component, str], Runner], examples: int, seed: int) -> Row:
    """Fuzz the planted defect and its clean twin, where the backend can show the defect.

    Args:
        entry: of the zoo.
        make_runner: where plans run, given a component and a target's name.
        examples: plans for each of the two.
        seed: of the search.
    """
    started = time.perf_counter()
    words = ""
    try:
        runner = make_runner(entry.planted(), "")
        if (name := runner.backend_name) not in entry.backends:
            return Row(entry.code, entry.name, False, "", True, "", 0.0, f"not on {name}: {entry.reason}")
        planted = fuzz(entry.planted(), examples=examples, seed=seed, runner=runner).targets[0]
        twin = fuzz(entry.clean(), examples=examples, seed=seed, runner=make_runner(entry.clean(), "")).targets[0]
    except (GraphcheckError, RuntimeError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        return Row(entry.code, entry.name, False, "", False, first, time.perf_counter() - started)
    loud = [finding for finding in twin.findings if finding.severity is not Severity.NOTE]
    if loud:
        words = f"{loud[0].code}: {loud[0].message}"
    return Row(
        code=entry.code,
        name=entry.name,
        found=planted.verdict is Verdict.FAIL or any(seen.severity is entry.severity for seen in planted.findings[:1]),
        first=planted.findings[0].code if planted.findings else "",
        silent=twin.verdict is Verdict.PASS and not loud,
        words=words,
        seconds=time.perf_counter() - started,
    )
