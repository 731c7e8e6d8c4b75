"""eagle3: the one-model Eagle3 speculative loop: draft, verify, accept, and the bookkeeping of lengths and caches.

State is passed in, buffers are allocated once, nothing is global and nothing is read from the environment.
Importing the package is light; the names below load torch on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOMES = {
    "Acceptance": "eagle3.acceptance",
    "DraftLengths": "eagle3.lengths",
    "Eagle3Error": "eagle3.errors",
    "Snapshot": "eagle3.warmup",
    "accept_greedy": "eagle3.accept",
    "accept_rejection": "eagle3.accept",
    "saved": "eagle3.warmup",
}

__all__ = [
    "Acceptance",
    "DraftLengths",
    "Eagle3Error",
    "Snapshot",
    "accept_greedy",
    "accept_rejection",
    "saved",
]

if TYPE_CHECKING:
    from eagle3.accept import accept_greedy, accept_rejection
    from eagle3.acceptance import Acceptance
    from eagle3.errors import Eagle3Error
    from eagle3.lengths import DraftLengths
    from eagle3.warmup import Snapshot, saved


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'eagle3' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
