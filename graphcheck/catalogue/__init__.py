"""The catalogue: every code with its mechanism, symptom, a wrong and a right line, and what finds it. Needs no torch."""

from __future__ import annotations

import difflib

from graphcheck.catalogue import forbidden, frozen, memory, outcome, steps
from graphcheck.catalogue.entry import Hazard
from graphcheck.errors import UnknownTarget

__all__ = ["HAZARDS", "Hazard", "lookup"]

HAZARDS: dict[str, Hazard] = {
    hazard.code: hazard for family in (forbidden, frozen, memory, steps, outcome) for hazard in family.HAZARDS
}


def lookup(code: str) -> Hazard:
    """The entry of a code, in any case.

    Raises:
        UnknownTarget: there is no such code; names the nearest.
    """
    wanted = code.upper()
    if wanted in HAZARDS:
        return HAZARDS[wanted]
    close = difflib.get_close_matches(wanted, HAZARDS, n=3)
    hint = f"did you mean {', '.join(close)}?" if close else f"codes run from {min(HAZARDS)} to {max(HAZARDS)}"
    raise UnknownTarget(f"no code {code!r}; {hint}")
