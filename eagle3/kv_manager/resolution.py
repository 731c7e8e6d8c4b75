"""Which managers hold the caches: one function, which creation and cost estimation both ask."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3.errors import BudgetInfeasible, CreationRefused, NotServed
from eagle3.kv_manager.cost import Cost, split_budget
from eagle3.kv_manager.manager import CacheConfig, KvManager
from eagle3.kv_manager.manager_v1 import KvManagerV1
from eagle3.kv_manager.manager_v2 import KvManagerV2, SparseKvManagerV2
from eagle3.lengths import extra_kv_tokens


@dataclass(frozen=True)
class Serving:
    """What of an engine's configuration decides about its caches.

    Args:
        use_v2: the flag that asks for V2.
        beam: beams per request.
        connector: whether KV is handed to another engine.
        attention_dp: whether attention is data parallel; target and draft then share a pool.
        separate_draft: whether the draft may have a pool of its own.
    """

    use_v2: bool = False
    beam: int = 1
    connector: bool = False
    attention_dp: bool = False
    separate_draft: bool = True


@dataclass(frozen=True)
class Managers:
    """What was resolved.

    Args:
        target: class of the target's manager.
        draft: class of the draft's; None if it has none of its own.
        shared: whether the target's pool holds the draft layers.
        notes: what was resolved otherwise than asked for, in words.
    """

    target: type[KvManager]
    draft: type[KvManager] | None = None
    shared: bool = False
    notes: tuple[str, ...] = ()


def resolve_manager(config: CacheConfig, serving: Serving) -> tuple[type[KvManager], tuple[str, ...]]:
    """The class of a manager by its own configuration, and notes on what was asked for in vain.

    Raises:
        NotServed: sparse layers with beams or a connector.
    """
    chosen: type[KvManager] = KvManagerV1
    if config.sparse:
        chosen = SparseKvManagerV2
    elif serving.use_v2 or config.needs_v2:
        chosen = KvManagerV2
    gate = [words for words, on in (("beam search", serving.beam > 1), ("a KV connector", serving.connector)) if on]
    if not gate or chosen is KvManagerV1:
        return chosen, ()
    if config.sparse or config.needs_v2:
        raise NotServed(
            f"{' and '.join(gate)} with caches that only {chosen.__name__} can hold; "
            "V2 managers serve neither, so leave them off for this model"
        )
    return KvManagerV1, (f"V2 was asked for, but it does not serve {' and '.join(gate)}: V1 is used",)


def resolve_managers(target: CacheConfig, draft: CacheConfig | None, serving: Serving) -> Managers:
    """The classes of both managers. The draft's follows the target's: a V2 target has a V2 draft.

    By its own configuration a draft is a plain dense model, which would give V1 under a target that is V2 whatever the
    flags say; the scheduler suspends requests in both.

    Raises:
        NotServed: a combination that no manager serves.
        CreationRefused: the caches must be shared, but the target's manager cannot.
    """
    chosen, notes = resolve_manager(target, serving)
    if draft is None:
        return Managers(chosen, notes=notes)
    if serving.attention_dp or not serving.separate_draft:
        if not chosen.supports_shared_draft_layers:
            reason = "attention is data parallel" if serving.attention_dp else "separate_draft is off"
            raise CreationRefused(
                f"{reason}, so target and draft must share a pool, but {chosen.__name__} cannot hold draft layers; "
                "turn that off, or use a manager that can"
            )
        return Managers(chosen, shared=True, notes=notes)
    if draft.mixed_windows:
        raise NotServed(
            "a draft whose layers mix sliding and full windows with a cache of its own: its budget would have to be "
            "partitioned by window; share the target's pool (separate_draft=False), or use one kind of window"
        )
    if issubclass(chosen, KvManagerV2):
        return Managers(chosen, KvManagerV2, notes=notes)
    own, more = resolve_manager(draft, serving)
    return Managers(chosen, own, notes=notes + more)


def cache_cost(
    target: CacheConfig, draft: CacheConfig | None, serving: Serving, page_size: int
) -> tuple[Cost, Cost, Managers]:
    """Costs of the target's and the draft's pool, and the managers that they are for.

    Raises:
        NotServed, CreationRefused: as of `resolve_managers`.
    """
    managers = resolve_managers(target, draft, serving)
    cost = _cost(managers.target, target, page_size)
    if draft is None:
        return cost, Cost(), managers
    if managers.draft is None:
        # Draft layers have no index keys, so only what all managers need is added.
        return cost + _cost(managers.target, draft, page_size), Cost(), managers
    return cost, _cost(managers.draft, draft, page_size), managers


def create_managers(
    target: CacheConfig, draft: CacheConfig | None, serving: Serving, *, budget: int, page_size: int, draft_len: int
) -> tuple[KvManager, KvManager | None]:
    """Managers whose pools together take at most ``budget`` bytes, of the classes and costs that were estimated.

    Raises:
        NotServed, CreationRefused: as of `resolve_managers`.
        BudgetInfeasible: the budget does not hold a page of each.
    """
    of_target, of_draft, managers = cache_cost(target, draft, serving, page_size)
    bytes_target, bytes_draft = split_budget(budget, of_target, of_draft)
    extra = extra_kv_tokens(draft_len)
    first = managers.target(
        _pages(of_target, bytes_target, page_size, "target"),
        page_size,
        extra_tokens=extra if managers.shared else 0,
    )
    if managers.draft is None:
        return first, None
    pages = _pages(of_draft, bytes_draft, page_size, "draft")
    return first, managers.draft(pages, page_size, extra_tokens=extra, is_draft=True)


def draft_layers(target_layers: int, layers: int) -> list[int]:
    """Layer indices of the draft, in either pool: they start behind the target's."""
    return list(range(target_layers, target_layers + layers))


def _cost(manager: type[KvManager], config: CacheConfig, page_size: int) -> Cost:
    slope = manager.bytes_per_token(config)
    return Cost(slope, slope * manager.fixed_tokens(page_size))


def _pages(cost: Cost, budget: int, page_size: int, role: str) -> int:
    pages = cost.tokens(budget) // page_size
    if pages < 1:
        raise BudgetInfeasible(
            f"{budget} bytes for the {role} cache do not hold a page of {page_size} tokens, which takes "
            f"{cost.bytes(page_size)} bytes with what is there in any case; raise the budget or make pages smaller"
        )
    return pages
