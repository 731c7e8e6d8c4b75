"""The self-test: is a planted defect found with its cause first, and is its clean twin silent?"""

from __future__ import annotations

import time
from dataclasses import dataclass

from graphcheck.errors import GraphcheckError
from graphcheck.finding import Severity, Verdict
from graphcheck.fuzzer import fuzz
from graphcheck.zoo import Entry


@dataclass(frozen=True)
class Row:
    """What came of one zoo entry.

    Args:
        code, name: of the entry.
        found: the planted defect fails.
        first: the code that leads its report.
        silent: the clean twin passes without error or warning.
        words: what the twin said, or what went wrong.
        seconds: wall time of both.
    """

    code: str
    name: str
    found: bool
    first: str
    silent: bool
    words: str
    seconds: float

    @property
    def right(self) -> bool:
        """Found, cause first, twin silent."""
        return self.found and self.first == self.code and self.silent


def plant(entry: Entry, backend: str, examples: int, seed: int) -> Row:
    """Fuzz the planted defect and its clean twin."""
    started = time.perf_counter()
    words = ""
    try:
        planted = fuzz(entry.planted(), backend=backend, examples=examples, seed=seed).targets[0]
        twin = fuzz(entry.clean(), backend=backend, examples=examples, seed=seed).targets[0]
    except GraphcheckError as error:
        return Row(entry.code, entry.name, False, "", False, str(error), time.perf_counter() - started)
    loud = [finding for finding in twin.findings if finding.severity is not Severity.NOTE]
    if loud:
        words = f"{loud[0].code}: {loud[0].message}"
    return Row(
        code=entry.code,
        name=entry.name,
        found=planted.verdict is Verdict.FAIL,
        first=planted.findings[0].code if planted.findings else "",
        silent=twin.verdict is Verdict.PASS and not loud,
        words=words,
        seconds=time.perf_counter() - started,
    )
