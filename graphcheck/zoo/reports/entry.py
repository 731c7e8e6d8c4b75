"""What a report becomes where it is no ordinary zoo entry."""

from __future__ import annotations

from dataclasses import dataclass

from graphcheck.zoo import Entry


@dataclass(frozen=True)
class Undetected:
    """A planted report whose cause graphcheck does not name first.

    Args:
        entry: the planted component and its clean twin.
        needs: what leads today, and what a detector would have to see; one sentence.
    """

    entry: Entry
    needs: str


@dataclass(frozen=True)
class Snippet:
    """A report that only the source shows.

    Args:
        code: the cause.
        name: short and unique, begins with the report's number.
        planted: source with the defect.
        clean: the same source without it.
        mechanism: one sentence.
    """

    code: str
    name: str
    planted: str
    clean: str
    mechanism: str
