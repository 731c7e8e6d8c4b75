"""One entry of the catalogue."""

from __future__ import annotations

from dataclasses import dataclass

_DETECTORS = {
    "s": "static reading of the source",
    "c": "watching the capture",
    "g": "inspecting the captured graph",
    "r": "mutated replay against eager",
    "e": "the emulator",
}


@dataclass(frozen=True)
class Hazard:
    """What can go wrong, how it shows, and what to write instead.

    Args:
        code: ``GC302``.
        name: a short title.
        mechanism: why it happens.
        symptom: what a user sees.
        wrong, right: one line of code or practice each.
        detectors: letters of the methods that can see it: s, c, g, r, e.
    """

    code: str
    name: str
    mechanism: str
    symptom: str
    wrong: str
    right: str
    detectors: str

    @property
    def found_by(self) -> str:
        """The methods in words."""
        return "\n".join(_DETECTORS[letter] for letter in self.detectors) or "nothing here; see the right practice"
