"""What a report becomes where it is no ordinary zoo entry."""

from __future__ import annotations

from dataclasses import dataclass


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
