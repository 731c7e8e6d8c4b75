"""Which managers are resolved, that creation and estimation agree everywhere, and how budgets are split."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3.errors import BudgetInfeasible, CreationRefused, NotServed
from eagle3.kv_manager import (
    CacheConfig,
    CachePair,
    Cost,
    KvManagerV1,
    KvManagerV2,
    Serving,
    SparseKvManagerV2,
    cache_cost,
    create_managers,
    draft_layers,
    resolution,
    resolve_managers,
    split_budget,
    split_host_budget,
)
from eagle3.kv_manager.cost import admitted_seq_len, dummy_tokens, warmup_pages

M3 = CacheConfig(layers=60, kv_heads=4, head_dim=128, index_dim=128)
DENSE = CacheConfig(layers=32, kv_heads=8, head_dim=128)
DRAFT = CacheConfig(layers=1, kv_heads=8, head_dim=128)


def grid() -> Iterator[tuple[CacheConfig, CacheConfig, Serving]]:
    """Every combination of what decides."""
    flags = itertools.product([False, True], [1, 2], [False, True], [False, True], [False, True])
    for use_v2, beam, connector, attention_dp, separate in flags:
        serving = Serving(use_v2, beam, connector, attention_dp, separate)
        for target, draft in itertools.product(
            (M3, DENSE, replace(DENSE, needs_v2=True)), (DRAFT, replace(DRAFT, needs_v2=True))
        ):
            yield target, draft, serving


def outcome(call):
    """The classes of target and draft, or the refusal's class."""
    try:
        return call()
    except CreationRefused as refusal:
        return type(refusal)


def created(target, draft, serving):
    def call():
        managers = create_managers(target, draft, serving, budget=2**32, page_size=32, draft_len=3)
        return [type(manager) if manager is not None else None for manager in managers]

    return outcome(call)


def estimated(target, draft, serving):
    def call():
        managers = cache_cost(target, draft, serving, 32)[2]
        return [managers.target, managers.draft]

    return outcome(call)


def disagreements(estimate=estimated) -> list[tuple]:
    return [point for point in grid() if created(*point) != estimate(*point)]


def mismatched() -> list[tuple]:
    """Points whose managers no scheduler of the target's generation can serve."""
    wrong = []
    for point in grid():
        classes = created(*point)
        if isinstance(classes, list) and classes[1] is not None and classes[0].can_suspend > classes[1].can_suspend:
            wrong.append(point)
    return wrong


def test_creation_and_estimation_agree_over_the_whole_grid():
    assert disagreements() == []
    outcomes = [created(*point) for point in grid()]
    assert NotServed in outcomes and [SparseKvManagerV2, KvManagerV2] in outcomes and [KvManagerV1, None] in outcomes


def test_a_v2_target_always_has_a_draft_that_can_suspend():
    assert mismatched() == []
    for target, draft, serving in grid():
        classes = created(target, draft, serving)
        if isinstance(classes, list) and classes[0].version == 2:
            managers = create_managers(target, draft, serving, budget=2**32, page_size=32, draft_len=3)
            assert CachePair(*managers).managers


def test_an_estimate_that_takes_the_targets_class_for_the_draft_is_found():
    """Planted: estimation asks for the target's class with the draft's number of layers, creation for the draft's own."""

    def planted(target, draft, serving):
        classes = estimated(target, draft, serving)
        return [classes[0], classes[1] and classes[0]] if isinstance(classes, list) else classes

    assert disagreements(planted)


def test_a_creation_that_resolves_the_draft_by_itself_is_found(monkeypatch):
    """Planted: the draft is a plain dense model, so by its own configuration it gets V1 under a sparse target."""
    honest = resolution.resolve_managers

    def planted(target, draft, serving):
        managers = honest(target, draft, serving)
        if managers.draft is None:
            return managers
        return replace(managers, draft=resolution.resolve_manager(draft, serving)[0])

    monkeypatch.setattr(resolution, "resolve_managers", planted)
    assert (M3, DRAFT, Serving()) in mismatched()


def test_m3_is_v2_whatever_the_flag_says_and_so_is_its_draft():
    for use_v2 in (False, True):
        managers = resolve_managers(M3, DRAFT, Serving(use_v2=use_v2))
        assert (managers.target, managers.draft, managers.shared) == (SparseKvManagerV2, KvManagerV2, False)
    assert resolve_managers(DENSE, DRAFT, Serving()).draft is KvManagerV1
    assert resolve_managers(DENSE, None, Serving(use_v2=True)).draft is None


@pytest.mark.parametrize("serving", [Serving(beam=2), Serving(connector=True)])
def test_sparse_layers_refuse_beams_and_connectors_and_dense_ones_fall_back_aloud(serving):
    with pytest.raises(NotServed, match="V2 managers serve neither"):
        resolve_managers(M3, DRAFT, serving)
    with pytest.raises(NotServed):
        resolve_managers(replace(DENSE, needs_v2=True), DRAFT, serving)
    managers = resolve_managers(DENSE, DRAFT, replace(serving, use_v2=True))
    assert managers.target is KvManagerV1 and managers.draft is KvManagerV1
    assert len(managers.notes) == 2 and all("V1 is used" in note for note in managers.notes)


def test_a_draft_of_mixed_windows_needs_the_shared_pool():
    mixed = replace(DRAFT, mixed_windows=True)
    with pytest.raises(NotServed, match="mix sliding and full windows"):
        resolve_managers(M3, mixed, Serving())
    assert resolve_managers(M3, mixed, Serving(separate_draft=False)).shared


@pytest.mark.parametrize(
    ("serving", "words"),
    [
        (Serving(attention_dp=True), "attention is data parallel"),
        (Serving(separate_draft=False), "separate_draft is off"),
    ],
)
def test_a_pool_that_cannot_hold_draft_layers_is_refused(monkeypatch, serving, words):
    monkeypatch.setattr(SparseKvManagerV2, "supports_shared_draft_layers", False)
    with pytest.raises(CreationRefused, match=words):
        resolve_managers(M3, DRAFT, serving)


def test_a_shared_pool_holds_the_extra_tokens_and_costs_both():
    serving = Serving(attention_dp=True)
    target, draft = create_managers(M3, DRAFT, serving, budget=2**32, page_size=32, draft_len=4)
    assert draft is None and target.extra_tokens == 3
    together, nothing, _ = cache_cost(M3, DRAFT, serving, 32)
    alone, _, _ = cache_cost(M3, None, serving, 32)
    assert nothing == Cost() and together.slope - alone.slope == KvManagerV2.bytes_per_token(DRAFT)
    target, draft = create_managers(M3, DRAFT, Serving(), budget=2**32, page_size=32, draft_len=4)
    assert target.extra_tokens == 0 and draft.extra_tokens == 3 and draft.is_draft


def test_bytes_per_token():
    assert SparseKvManagerV2.bytes_per_token(M3) == 60 * (2048 + 256)
    cost = cache_cost(M3, DRAFT, Serving(), 128)[0]
    assert cost == Cost(138240, 138240 * 128) and cost.bytes(10) == 138240 * 138
    assert cost.tokens(cost.bytes(10)) == 10 and cost.tokens(0) == 0


@given(
    budget=st.integers(2**20, 2**36),
    page_size=st.sampled_from([16, 32, 128]),
    layers=st.integers(1, 80),
    serving=st.builds(Serving, use_v2=st.booleans(), separate_draft=st.booleans()),
    target=st.sampled_from([M3, DENSE]),
)
@settings(max_examples=60, deadline=None)
def test_created_pools_never_exceed_the_budget(budget, page_size, layers, serving, target):
    target = replace(target, layers=layers)
    try:
        first, second = create_managers(target, DRAFT, serving, budget=budget, page_size=page_size, draft_len=3)
    except BudgetInfeasible:
        return
    of_target, of_draft, _ = cache_cost(target, DRAFT, serving, page_size)
    used = of_target.bytes(first.pool.num_pages * page_size)
    if second is not None:
        used += of_draft.bytes(second.pool.num_pages * page_size)
        # The smaller pool decides how many tokens are served, so they must be close.
        assert abs(first.pool.num_pages - second.pool.num_pages) <= 1
    assert used <= budget


@given(st.integers(0, 10**12), *[st.integers(0, 10**6) for _ in range(4)])
@settings(max_examples=60, deadline=None)
def test_shares_add_up_to_the_budget(budget, slope, intercept, draft_slope, draft_intercept):
    target, draft = Cost(slope, intercept), Cost(draft_slope, draft_intercept)
    if budget < intercept + draft_intercept:
        with pytest.raises(BudgetInfeasible, match=f"the budget is {budget}"):
            split_budget(budget, target, draft)
    else:
        shares = split_budget(budget, target, draft)
        assert sum(shares) == budget and shares[0] >= intercept and shares[1] >= draft_intercept
    assert sum(split_host_budget(budget, target, draft)) == budget
    assert (target + draft).bytes(3) == target.bytes(3) + draft.bytes(3)


def test_a_budget_without_room_for_a_page_is_infeasible():
    with pytest.raises(BudgetInfeasible, match="target cache do not hold a page of 128 tokens"):
        create_managers(M3, DRAFT, Serving(), budget=138240 * 200, page_size=128, draft_len=3)


def test_what_estimation_asks_for():
    assert dummy_tokens(100, 3, overlap=False) == 100 + 4 + 2
    assert dummy_tokens(100, 3, overlap=True) == 100 + 8 + 2
    assert warmup_pages(4096, 128, 8) == 33 + 7
    for length, extra in itertools.product((1, 77, 4096), range(5)):
        assert admitted_seq_len(length + extra, extra, 10**9) - extra <= length
        assert admitted_seq_len(length, extra, length + extra) == length
        assert admitted_seq_len(length, extra, length + extra - 1) == length - 1
    assert draft_layers(60, 2) == [60, 61]
