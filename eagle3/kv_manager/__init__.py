"""Caches of requests: pages, managers of both generations, the scheduler that grants steps, and what it all costs."""

from __future__ import annotations

from eagle3.kv_manager.allocator import PagePool
from eagle3.kv_manager.cache import RequestCache
from eagle3.kv_manager.cost import Cost, split_budget, split_host_budget
from eagle3.kv_manager.dummies import add_dummy_requests, dummy_id
from eagle3.kv_manager.manager import CacheConfig, KvManager
from eagle3.kv_manager.manager_v1 import KvManagerV1
from eagle3.kv_manager.manager_v2 import KvManagerV2, SparseKvManagerV2
from eagle3.kv_manager.pair import CachePair
from eagle3.kv_manager.resolution import (
    Managers,
    Serving,
    cache_cost,
    create_managers,
    draft_layers,
    resolve_manager,
    resolve_managers,
)
from eagle3.kv_manager.scheduler import Phase, Request, Row, Scheduler
from eagle3.kv_manager.tier import HostTier, Tier

__all__ = [
    "CacheConfig",
    "CachePair",
    "Cost",
    "HostTier",
    "KvManager",
    "KvManagerV1",
    "KvManagerV2",
    "Managers",
    "PagePool",
    "Phase",
    "Request",
    "RequestCache",
    "Row",
    "Scheduler",
    "Serving",
    "SparseKvManagerV2",
    "Tier",
    "add_dummy_requests",
    "cache_cost",
    "create_managers",
    "draft_layers",
    "dummy_id",
    "resolve_manager",
    "resolve_managers",
    "split_budget",
    "split_host_budget",
]
