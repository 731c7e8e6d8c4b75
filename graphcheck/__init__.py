"""graphcheck: proves that code captured in CUDA graphs does the right thing.

Importing this package imports neither torch nor Hypothesis; the names below load what they need on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Buffers": "graphcheck.component",
    "Case": "graphcheck.cases",
    "CaseRefused": "graphcheck.errors",
    "Component": "graphcheck.component",
    "Contents": "graphcheck.cases",
    "Finding": "graphcheck.finding",
    "GraphcheckError": "graphcheck.errors",
    "PageTable": "graphcheck.cases",
    "Plan": "graphcheck.plan",
    "Range": "graphcheck.contract",
    "Recorded": "graphcheck.component",
    "Report": "graphcheck.report",
    "Severity": "graphcheck.finding",
    "Tolerance": "graphcheck.component",
    "Verdict": "graphcheck.finding",
    "batch": "graphcheck.strategies",
    "capture_safe": "graphcheck.contract",
    "case": "graphcheck.strategies",
    "check": "graphcheck.checker",
    "component_of": "graphcheck.decorated",
    "contents": "graphcheck.strategies",
    "fuzz": "graphcheck.fuzzer",
    "integers": "graphcheck.strategies",
    "lengths": "graphcheck.strategies",
    "page_tables": "graphcheck.strategies",
    "refuse_while_capturing": "graphcheck.contract",
}

__all__ = ["__version__", *sorted(_HOMES)]

if TYPE_CHECKING:
    from graphcheck.cases import Case, Contents, PageTable
    from graphcheck.checker import check
    from graphcheck.component import Buffers, Component, Recorded, Tolerance
    from graphcheck.contract import Range, capture_safe, refuse_while_capturing
    from graphcheck.decorated import component_of
    from graphcheck.errors import CaseRefused, GraphcheckError
    from graphcheck.finding import Finding, Severity, Verdict
    from graphcheck.fuzzer import fuzz
    from graphcheck.plan import Plan
    from graphcheck.report import Report
    from graphcheck.strategies import batch, case, contents, integers, lengths, page_tables


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'graphcheck' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
