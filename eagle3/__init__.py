"""eagle3: the one-model Eagle3 speculative loop: draft, verify, accept, and the bookkeeping of lengths and caches.

State is passed in, buffers are allocated once, nothing is global and nothing is read from the environment.
Importing the package is light; the names below load torch on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOMES = {
    "Acceptance": "eagle3.acceptance",
    "Bucket": "eagle3.routing",
    "Buckets": "eagle3.routing",
    "CachePair": "eagle3.kv_manager",
    "DraftLengths": "eagle3.lengths",
    "Eagle3Error": "eagle3.errors",
    "EngineConfig": "eagle3.refusals",
    "Mirror": "eagle3.mirror",
    "OverlapOffsets": "eagle3.overlap",
    "Scheduler": "eagle3.kv_manager",
    "Snapshot": "eagle3.warmup",
    "Step": "eagle3.routing",
    "accept_greedy": "eagle3.accept",
    "accept_rejection": "eagle3.accept",
    "check_creation": "eagle3.refusals",
    "create_managers": "eagle3.kv_manager",
    "resolve_managers": "eagle3.kv_manager",
    "restage_mixed": "eagle3.mirror",
    "route_step": "eagle3.routing",
    "saved": "eagle3.warmup",
}

__all__ = [
    "Acceptance",
    "Bucket",
    "Buckets",
    "CachePair",
    "DraftLengths",
    "Eagle3Error",
    "EngineConfig",
    "Mirror",
    "OverlapOffsets",
    "Scheduler",
    "Snapshot",
    "Step",
    "accept_greedy",
    "accept_rejection",
    "check_creation",
    "create_managers",
    "resolve_managers",
    "restage_mixed",
    "route_step",
    "saved",
]

if TYPE_CHECKING:
    from eagle3.accept import accept_greedy, accept_rejection
    from eagle3.acceptance import Acceptance
    from eagle3.errors import Eagle3Error
    from eagle3.kv_manager import CachePair, Scheduler, create_managers, resolve_managers
    from eagle3.lengths import DraftLengths
    from eagle3.mirror import Mirror, restage_mixed
    from eagle3.overlap import OverlapOffsets
    from eagle3.refusals import EngineConfig, check_creation
    from eagle3.routing import Bucket, Buckets, Step, route_step
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
