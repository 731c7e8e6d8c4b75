"""The catalogue: every code with mechanism, symptom, a wrong and a right line, and what finds it. Needs no torch."""

from __future__ import annotations

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
    raise UnknownTarget(f"no code {code!r}; did you mean {', '.join(_neighbours(wanted))}?")


def _neighbours(wanted: str) -> list[str]:
    """Codes that go on from ``wanted``, else the three nearest by number; the range where there is no number."""
    longer = [code for code in HAZARDS if code.startswith(wanted) and wanted != "GC"]
    digits = "".join(letter for letter in wanted if letter.isdigit())[:4]
    if longer or not digits:
        return longer[:6] or [min(HAZARDS), max(HAZARDS)]
    return sorted(HAZARDS, key=lambda code: abs(int(code[2:]) - int(digits[:3])))[:3]
