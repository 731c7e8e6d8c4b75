"""Pages, caches and managers one by one, dummies, and the host tier."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3.errors import (
    CacheNotActive,
    HistoryViolated,
    KvError,
    ManagerMismatch,
    MirrorMismatch,
    NothingInFlight,
    OutOfPages,
    PageNotHeld,
    RequestExists,
    ShapeMismatch,
    UnknownRequest,
)
from eagle3.kv_manager import (
    CachePair,
    HostTier,
    KvManagerV1,
    KvManagerV2,
    PagePool,
    RequestCache,
    Row,
    Scheduler,
    add_dummy_requests,
    dummy_id,
)
from eagle3.lengths import extra_kv_tokens

torch.set_num_threads(1)


def pair(target: int = 20, draft: int = 20, page_size: int = 4, draft_len: int = 3) -> CachePair:
    extra = extra_kv_tokens(draft_len)
    return CachePair(KvManagerV2(target, page_size), KvManagerV2(draft, page_size, extra_tokens=extra, is_draft=True))


def free(caches: CachePair) -> list[int]:
    return [manager.pool.free for manager in caches.managers]


def test_a_pool_hands_out_each_page_once_and_takes_back_what_it_gave():
    pool = PagePool(4)
    first = pool.take(3)
    with pytest.raises(OutOfPages, match="2 pages asked for, 1 of 4 free"):
        pool.take(2)
    assert pool.free == 1
    pool.give(first[:2])
    for wrong in ([first[0]], [first[2], first[2]], [9]):
        with pytest.raises(PageNotHeld):
            pool.give(wrong)
    assert pool.free == 3 and pool.held == {first[2]}
    with pytest.raises(KvError, match="0 pages"):
        PagePool(0)


def test_capacity_holds_history_flying_and_granted_tokens():
    pool = PagePool(40)
    cache = RequestCache(7, pool, 4, extra=2)
    assert cache.capacity == 0
    assert cache.grow(10) and cache.capacity == 12 and len(cache.pages) == 3
    cache.launch()
    assert cache.grow(4) and cache.capacity == 16
    cache.settle(10)
    assert cache.history == 10 and cache.capacity == 16
    cache.launch()
    cache.settle(1)
    assert cache.history == 11 and cache.capacity == 13 and len(cache.pages) == 4
    cache.close()
    assert pool.free == 40


def test_a_step_scheduled_again_or_skipped_grows_nothing():
    cache = RequestCache(0, PagePool(100), 1)
    for _ in range(1000):
        cache.grow(4)
    assert cache.capacity == 4
    cache.grow(6)
    assert cache.capacity == 6 and len(cache.pages) == 6
    for _ in range(1000):
        cache.grow(4)
        cache.cancel()
    assert cache.capacity == 0 and cache.pages == []


def test_what_a_cache_cannot_do_is_refused():
    cache = RequestCache(7, PagePool(4), 4)
    with pytest.raises(NothingInFlight, match="request 7 is launched without a grant"):
        cache.launch()
    with pytest.raises(NothingInFlight, match="no step in flight"):
        cache.settle(1)
    cache.grow(4)
    cache.launch()
    for kept in (5, -1):
        with pytest.raises(HistoryViolated, match=f"{kept} tokens kept of a step that was granted 4"):
            cache.settle(kept)
    assert not cache.grow(100) and cache.granted == 0
    cache.suspend()
    for call in (lambda: cache.grow(1), cache.launch, cache.suspend):
        with pytest.raises(CacheNotActive, match="request 7"):
            call()


def test_a_suspended_cache_is_settled_in_numbers_only():
    pool = PagePool(4)
    cache = RequestCache(0, pool, 4)
    cache.grow(12)
    cache.launch()
    cache.suspend()
    cache.settle(5)
    assert pool.free == 4 and cache.history == 5
    other = RequestCache(1, pool, 4)
    other.grow(9)
    assert not cache.resume() and not cache.active
    other.close()
    assert cache.resume() and len(cache.pages) == 2


@pytest.mark.parametrize("page_size", [1, 16, 64])
@given(counts=st.lists(st.integers(1, 4), max_size=20))
@settings(max_examples=20, deadline=None)
def test_every_page_of_a_request_comes_back(page_size, counts):
    manager = KvManagerV2(200, page_size)
    manager.prepare_context(0)
    manager.resize_context(0, 30)
    manager.launch(0)
    manager.update_resources(0, 30)
    for kept in counts:
        assert manager.try_allocate_generation(0, 3)
        manager.launch(0)
        manager.update_resources(0, kept)
    assert manager.cache(0).history == 30 + sum(counts)
    manager.free_resources(0)
    assert manager.pool.free == 200 and not manager.caches


def test_observers_see_pages_as_they_are():
    seen = {}
    manager = KvManagerV2(10, 4)
    manager.observers.append(seen.__setitem__)
    manager.prepare_context(5)
    manager.resize_context(5, 8)
    manager.launch(5)
    manager.update_resources(5, 8)
    manager.try_allocate_generation(5, 3)
    assert len(seen[5]) == 3
    manager.launch(5)
    manager.update_resources(5, 0)
    assert seen[5] == tuple(manager.rows([5])[0]) and len(seen[5]) == 2
    manager.suspend_request(5)
    manager.suspend_request(5)
    assert seen[5] == () and not manager.is_request_active(5)
    manager.free_resources(5)
    for call in (lambda: manager.free_resources(5), lambda: manager.rows([5]), lambda: manager.capacity(5)):
        with pytest.raises(UnknownRequest, match="request 5"):
            call()


def test_a_first_chunk_that_does_not_fit_leaves_the_request_without_pages():
    caches = pair(target=9, draft=2)
    caches.prepare_context(0)
    assert not caches.resize_context(0, 20)
    assert free(caches) == [9, 2] and not any(manager.is_request_active(0) for manager in caches.managers)
    assert caches.prepare_context(0) and caches.is_request_active(0)


@given(st.lists(st.tuples(st.sampled_from(["add", "rewind"]), st.integers(0, 9)), max_size=20), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_a_sequence_of_the_first_generation_grows_and_rewinds(calls, page_size):
    manager = KvManagerV1(12, page_size)
    manager.add_sequence(0, 1)
    tokens = 1
    for call, count in calls:
        if call == "rewind":
            if count > tokens:
                with pytest.raises(NothingInFlight, match=f"rewind by {count} of {tokens} tokens"):
                    manager.rewind_kv_cache(0, count)
            else:
                manager.rewind_kv_cache(0, count)
                tokens -= count
        elif count:
            if manager.needed_pages(0, count) > manager.pool.free:
                with pytest.raises(OutOfPages):
                    manager.add_token(0, count)
            else:
                manager.add_token(0, count)
                tokens += count
        assert manager.cache(0).history == tokens == manager.capacity(0)
        assert len(manager.rows([0])[0]) == -(-tokens // page_size)
    with pytest.raises(RequestExists):
        manager.add_sequence(0, 1)
    manager.free_resources(0)
    with pytest.raises(OutOfPages):
        manager.add_sequence(1, 1000)
    assert manager.pool.free == 12 and not manager.caches


def test_the_first_generation_cannot_suspend():
    assert not hasattr(KvManagerV1, "suspend_request")
    with pytest.raises(ManagerMismatch, match="the target cache is a KvManagerV1"):
        CachePair(KvManagerV1(4, 16), KvManagerV2(4, 16))  # type: ignore[arg-type]


def test_a_suspended_request_finds_its_bits_in_other_pages():
    tensors = [torch.zeros(7, 2, 4), torch.zeros(7, 4, 3)]
    manager = KvManagerV2(6, 4)
    manager.tier = HostTier(tensors)

    def begin(request: int, tokens: int) -> None:
        assert manager.prepare_context(request) and manager.resize_context(request, tokens)
        manager.launch(request)
        manager.update_resources(request, tokens)

    begin(0, 12)
    before = manager.rows([0])[0]
    for tensor in tensors:
        tensor[before] = torch.randn_like(tensor[before])
    held = [tensor[before].clone() for tensor in tensors]
    manager.suspend_request(0)
    begin(1, 8)
    for tensor in tensors:
        tensor[manager.rows([1])[0]] = float("nan")
    assert manager.try_allocate_generation(0, 3)
    after = manager.rows([0])[0]
    assert after[:3] != before
    assert all(torch.equal(tensor[after[:3]], old) for tensor, old in zip(tensors, held, strict=True))
    manager.suspend_request(0)
    manager.free_resources(0)
    assert manager.tier.kept == {}


@pytest.mark.parametrize("page", [4, 16])
@pytest.mark.parametrize("overlap", [False, True])
def test_every_slot_of_a_step_lies_in_its_pages_around_every_boundary(page, overlap):
    """All lengths around a page, all counts, one step and the one behind it; the last draft slot is needed once."""
    for draft_len in range(1, 5):
        extra, tight = extra_kv_tokens(draft_len), False
        for past in (page - 1, page, page + 1, page + draft_len, 2 * page - 1):
            for first in range(1, draft_len + 2):
                for second in range(1, draft_len + 2):
                    cache = RequestCache(0, PagePool(20), page, extra)
                    cache.grow(past)
                    cache.launch()
                    cache.settle(past)
                    true = past
                    for kept in (first, second):
                        assert cache.grow(1 + draft_len)
                        cache.launch()
                        written = max(true + draft_len, true + kept + draft_len - 2)
                        assert written < cache.capacity <= len(cache.pages) * page
                        tight |= written == cache.capacity - 1
                        true += kept
                        if not overlap:
                            cache.settle(kept)
        assert tight


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("draft_len", range(5))
def test_a_dummy_holds_what_its_step_writes_and_no_token_less(page_size, draft_len):
    extra = extra_kv_tokens(draft_len)
    for tokens in (1, 2, page_size, page_size + 1, 15):
        writes = tokens + draft_len  # the history and one more, then the drafts
        pages = [-(-writes // page_size), -(-(writes + extra) // page_size)]
        caches = pair(*pages, page_size, draft_len)
        step = add_dummy_requests(caches, [dummy_id(draft_len)], [tokens], draft_len)
        assert step == [[1] * (1 + draft_len)]
        assert [manager.capacity(dummy_id(draft_len)) for manager in caches.managers] == [writes, writes + extra]
        assert free(caches) == [0, 0]
        caches.free_resources(dummy_id(draft_len))
        assert free(caches) == pages


def test_dummies_are_all_there_or_none_is():
    for target, draft in ((5, 40), (40, 5)):
        caches = pair(target, draft)
        assert add_dummy_requests(caches, [0, 1, 2], [5, 5, 5], 3) is None
        assert free(caches) == [target, draft] and not any(manager.caches for manager in caches.managers)


def test_dummies_that_fail_midway_leave_nothing(monkeypatch):
    caches = pair()
    granted = caches.try_allocate_generation

    def failing(request: int, draft_len: int) -> bool:
        if request == 1:
            raise MemoryError
        return granted(request, draft_len)

    monkeypatch.setattr(caches, "try_allocate_generation", failing)
    with pytest.raises(MemoryError):
        add_dummy_requests(caches, [0, 1], [5, 5], 3)
    assert free(caches) == [20, 20]


def test_dummies_do_not_touch_a_request_of_the_same_id():
    caches = pair()
    add_dummy_requests(caches, [7], [5], 3)
    held = free(caches)
    with pytest.raises(RequestExists, match="request 7"):
        add_dummy_requests(caches, [6, 7], [5, 5], 3)
    assert free(caches) == held and set(caches.target.caches) == {7}
    with pytest.raises(ShapeMismatch, match="expected one >= 1 each"):
        add_dummy_requests(caches, [8], [0], 3)


def test_dummies_may_read_a_prompt_or_have_further_steps():
    caches = pair()
    assert add_dummy_requests(caches, [0], [9], 3, is_gen=False) == [[1] * 9]
    assert caches.target.capacity(0) == 9
    assert add_dummy_requests(caches, [1], [9], 3, extra_steps=2) == [[1] * 4]
    assert caches.target.capacity(1) == 9 + 3 + 2


def test_ids_of_dummies_are_out_of_the_way_and_one_per_draft_length():
    assert len({dummy_id(draft_len) for draft_len in range(8)}) == 8
    assert dummy_id(0) == 2**64 - 1


def test_a_scheduler_refuses_what_would_never_run():
    scheduler = Scheduler(pair(target=40, draft=4), 3, 4, 8)
    with pytest.raises(OutOfPages, match="the draft pool has 4"):
        scheduler.submit(0, 12, 4)
    scheduler.submit(0, 4, 1)
    with pytest.raises(RequestExists):
        scheduler.submit(0, 4, 1)
    with pytest.raises(MirrorMismatch, match="1 counts for a step of no rows"):
        scheduler.settle([1])
    rows = scheduler.schedule()
    assert rows == [Row(0, 4, context=True, last_chunk=True)]
    scheduler.launch(rows)
    with pytest.raises(MirrorMismatch, match="in flight already"):
        scheduler.launch(rows)
    assert scheduler.settle([1]) == [0] and scheduler.schedule() == []
