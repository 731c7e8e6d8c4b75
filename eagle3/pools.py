"""The memory of an engine: managers that hand out pages, and the caches that the pages are of."""

from __future__ import annotations

import torch

from eagle3.errors import CreationRefused
from eagle3.head import DraftHead
from eagle3.kv_manager import CacheConfig, CachePair, KvManagerV2, cache_cost, create_managers
from eagle3.lengths import extra_kv_tokens
from eagle3.m3.attention import allocate_caches
from eagle3.m3.config import TargetConfig
from eagle3.m3.target import Target
from eagle3.refusals import EngineConfig
from eagle3.step import Caches
from msa import Geometry, PagedCache

_NAMES = {torch.bfloat16: "bf16", torch.float32: "fp32"}


def engine_config(
    target: Target,
    head: DraftHead | None,
    *,
    draft_len: int,
    max_batch: int,
    max_seq_len: int,
    graphs: bool,
    backend: str,
    kernels: str,
) -> EngineConfig:
    """What `check_creation` and the managers need to know of an engine with these models.

    Args:
        max_seq_len: longest request, prompt and generated tokens together; the rest as of `eagle3.engine.Engine`.
    """
    config, dtype = target.config, target.embed.dtype
    draft = None
    if head is not None:
        draft = CacheConfig(1, head.config.num_key_value_heads, head.config.head_dim, dtype.itemsize)
    return EngineConfig(
        target=CacheConfig(config.layers, config.kv_heads, config.head_dim, dtype.itemsize, index_dim=config.head_dim),
        draft=draft,
        backend=backend,
        graphs=graphs,
        draft_len=draft_len,
        target_layers=config.layers,
        capture_layers=config.capture_layers,
        page_size=config.page_size,
        max_seq_len=max_seq_len,
        max_batch=max_batch,
        kv_dtype=_NAMES.get(dtype, str(dtype)),
        kernels=kernels,
    )


def allocate_pools(target: Target, head: DraftHead | None, config: EngineConfig) -> tuple[Caches, CachePair]:
    """Caches for ``max_batch`` requests of ``max_seq_len`` tokens, with what their last step writes beyond that.

    Raises:
        CreationRefused: the managers that this configuration resolves to cannot serve a speculative engine, or the head
            has no positions for such long requests.
        TargetConfigRefused: the target has no positions for such long requests.
    """
    longest = config.max_seq_len + 1 + config.draft_len + extra_kv_tokens(config.draft_len)
    if head is not None and head.table.shape[0] < longest:
        raise CreationRefused(
            f"requests of {longest} tokens with their last drafts, but the head's positions end at "
            f"{head.table.shape[0]}; make the head with positions={longest} or lower max_seq_len"
        )
    tokens = config.max_batch * -(-longest // config.page_size) * config.page_size
    costs = cache_cost(config.target, config.draft, config.serving, config.page_size)[:2]
    first, second = create_managers(
        config.target,
        config.draft,
        config.serving,
        budget=sum(cost.bytes(tokens) for cost in costs),
        page_size=config.page_size,
        draft_len=config.draft_len,
    )
    if not isinstance(first, KvManagerV2) or not isinstance(second, KvManagerV2 | None):
        raise CreationRefused(f"{type(first).__name__} for a target with index keys; it needs V2 managers")
    device, dtype = target.embed.device, target.embed.dtype
    geometry = target.config.geometry(
        max_batch=config.max_batch, num_pages=first.pool.num_pages, max_seq_len=longest, dtype=dtype
    )
    layers = allocate_caches(target.config, geometry, device)
    if head is None or second is None:
        return Caches(geometry, layers), CachePair(first)
    of_draft = draft_geometry(head, target.config, geometry, second.pool.num_pages)
    draft = PagedCache.allocate(of_draft, device, sparse=False)
    return Caches(geometry, layers, of_draft, draft), CachePair(first, second)


def draft_geometry(head: DraftHead, target: TargetConfig, geometry: Geometry, num_pages: int) -> Geometry:
    """The geometry of a head's cache: its own heads, and pages and rows as the target's."""
    return Geometry(
        q_heads=head.config.num_attention_heads,
        kv_heads=head.config.num_key_value_heads,
        index_heads=head.config.num_key_value_heads,
        head_dim=head.config.head_dim,
        page_size=target.page_size,
        top_k=1,
        max_batch=geometry.max_batch,
        max_pages=geometry.max_pages,
        num_pages=num_pages,
        max_seq_len=geometry.max_seq_len,
        dtype=geometry.dtype,
    )
