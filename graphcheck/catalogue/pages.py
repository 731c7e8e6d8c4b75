"""The rules' pages: what `graphcheck explain` prints, and the document with all of them."""

from __future__ import annotations

from graphcheck.catalogue import HAZARDS
from graphcheck.catalogue.checklist import SOURCE, items_of
from graphcheck.catalogue.entry import Hazard
from graphcheck.catalogue.reports import reports_of

# Codes that neither a zoo entry nor lint shows, and why.
UNCOVERED = {
    "GC409": "the emulator has no memory nodes; a real graph shows them, and tests/gpu plants one",
    "GC507": "a tensor that is alive at replay and was not at capture, or the other way round, is reported as GC405 or GC402",
    "GC901": "buffers that several ranks register with each other take several GPUs",
    "GC902": "takes several ranks; `graphcheck inspect --against` compares the graphs of two",
    "GC904": "communication that is set up inside a capture takes several GPUs",
    "GC964": "what is left when no cause was found",
}
_SHOWN = 6


def sections(hazard: Hazard) -> list[tuple[str, list[str]]]:
    """Label and lines of each part of a rule's page; parts without lines are left out."""
    reports = reports_of(hazard.code)
    listed = [f"{report.title} ({report.url})" for report in list(reports.values())[:_SHOWN]]
    if len(reports) > _SHOWN:
        listed.append(f"and {len(reports) - _SHOWN} more")
    parts = [
        ("What happens", [hazard.mechanism]),
        ("How it shows", [hazard.symptom]),
        ("Wrong", hazard.wrong.splitlines()),
        ("Right", hazard.right.splitlines()),
        ("Found by", hazard.found_by.splitlines()),
        ("On the checklist", items_of(hazard.code)),
        ("Public reports", listed),
        ("Not shown here", [UNCOVERED[hazard.code]] if hazard.code in UNCOVERED else []),
    ]
    return [(label, lines) for label, lines in parts if lines]


def document() -> str:
    """All pages as one Markdown document."""
    lines = [
        "# Codes",
        "",
        "One code space for lint, capture, inspection, replay and audit; `graphcheck explain CODE` prints a page.",
        f"Checklist items are those of [NVIDIA's quick checklist]({SOURCE}).",
        "",
        f"{len(HAZARDS)} codes. {len(UNCOVERED)} of them no planted component and no static rule shows:",
        "",
        *(f"- {code}: {reason}." for code, reason in UNCOVERED.items()),
    ]
    for hazard in HAZARDS.values():
        lines += ["", f"## {hazard.code} {hazard.name}", ""]
        for label, texts in sections(hazard):
            if label in ("Wrong", "Right"):
                lines += [f"{label}:", "", "```", *texts, "```", ""]
            elif len(texts) == 1:
                lines += [f"{label}: {texts[0]}", ""]
            else:
                lines += [f"{label}:", "", *(f"- {text}" for text in texts), ""]
        lines.pop()
    return "\n".join(lines) + "\n"
