"""Target and draft caches under a scheduler, with a device that writes what the loop writes; and defects planted in them.

The simulated device knows at launch how many tokens a step keeps, the host learns it when it settles. So the machine
runs through all sequences of kept tokens, prompts around page boundaries, pools that are too small, and the host one
step behind.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import Phase as HypothesisPhase
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from eagle3.errors import ManagerMismatch
from eagle3.kv_manager import CachePair, KvManagerV2, RequestCache, Row, Scheduler
from eagle3.kv_manager.scheduler import Phase
from eagle3.lengths import extra_kv_tokens

MOST, CHUNK, MAX_BATCH = 9, 7, 3


class Cells:
    """What stands in the slots of a pool, and in copies of suspended requests."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.slots: dict[tuple[int, int], tuple[int, int]] = {}
        self.copies: dict[int, list[dict[int, tuple[int, int]]]] = {}

    def write(self, request: int, position: int, pages: list[int]) -> None:
        page, offset = divmod(position, self.page_size)
        assert page < len(pages), f"request {request} writes position {position}, it has {len(pages)} pages"
        self.slots[pages[page], offset] = (request, position)

    def read(self, request: int, position: int, pages: list[int]) -> None:
        page, offset = divmod(position, self.page_size)
        assert page < len(pages), f"request {request} reads position {position}, it has {len(pages)} pages"
        found = self.slots.get((pages[page], offset))
        assert found == (request, position), f"request {request} finds {found} at its position {position}"

    def store(self, request: int, pages: Any) -> None:
        size = range(self.page_size)
        self.copies[request] = [
            {offset: self.slots[page, offset] for offset in size if (page, offset) in self.slots} for page in pages
        ]

    def load(self, request: int, pages: Any) -> None:
        for page, copy in zip(pages, self.copies.pop(request), strict=False):
            for offset, content in copy.items():
                self.slots[page, offset] = content

    def drop(self, request: int) -> None:
        self.copies.pop(request, None)


class Serving(RuleBasedStateMachine):
    """Requests arrive, steps are scheduled, launched, skipped and settled."""

    overlap = False
    draft_class: type[KvManagerV2] = KvManagerV2
    pair_class: type[CachePair] = CachePair
    forgets_extra = False
    sound = False

    @initialize(
        page_size=st.sampled_from([1, 4, 16]),
        draft_len=st.integers(0, 4),
        spare=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    )
    def build(self, page_size: int, draft_len: int, spare: tuple[int, int]) -> None:
        self.page_size, self.draft_len = page_size, draft_len
        self.next_id = 0
        extra = extra_kv_tokens(draft_len)
        # One request always fits, two often do not.
        least = -(-(20 + MOST + 2 * (1 + draft_len) + extra) // page_size)
        target = KvManagerV2(least + spare[0], page_size)
        draft = self.draft_class(
            least + spare[1], page_size, extra_tokens=0 if self.forgets_extra else extra, is_draft=True
        )
        self.cells = {id(manager): Cells(page_size) for manager in (target, draft)}
        self.observed: dict[int, dict[int, tuple[int, ...]]] = {id(target): {}, id(draft): {}}
        for manager in (target, draft):
            manager.tier = self.cells[id(manager)]
            manager.observers.append(self.observed[id(manager)].__setitem__)
        self.pair = self.pair_class(target, draft)
        self.scheduler = Scheduler(self.pair, draft_len, MAX_BATCH, CHUNK, overlap=self.overlap)
        self.past: dict[int, int] = {}
        self.kept: deque[list[int]] = deque()
        self.histories: dict[int, int] = {}
        self.sound = True

    def rows(self, manager: KvManagerV2, request: int) -> list[int]:
        return manager.rows([request])[0]

    @rule(prompt=st.integers(1, 20), most=st.integers(1, MOST))
    def submit(self, prompt: int, most: int) -> None:
        if len(self.scheduler.requests) < 5:
            self.scheduler.submit(self.next_id, prompt, most)
            self.past[self.next_id] = 0
            self.next_id += 1

    @rule(again=st.integers(0, 3), data=st.data(), skipped=st.sampled_from([False, False, False, True]))
    def step(self, again: int, data: st.DataObject, skipped: bool) -> None:
        if len(self.kept) > int(self.overlap):
            return
        self.sound = False
        self.one_step(again, data, skipped)
        self.sound = True

    def one_step(self, again: int, data: st.DataObject, skipped: bool) -> None:
        rows = self.scheduler.schedule()
        if again:
            held = self.capacities()
            for _ in range(again):
                rows = self.scheduler.schedule()
            assert self.capacities() == held, "a step that was scheduled again took more"
        if skipped:
            self.scheduler.skip(rows)
            return
        if not rows:
            return
        assert [row.context for row in rows] == sorted((row.context for row in rows), reverse=True)
        kept = [1 if row.context else data.draw(st.integers(1, row.tokens), label="kept") for row in rows]
        self.scheduler.launch(rows)
        for row, count in zip(rows, kept, strict=True):
            self.run(row, count)
        self.kept.append(kept)

    def run(self, row: Row, kept: int) -> None:
        """What target and draft read and write in one step of one request."""
        request, past = row.request, self.past[row.request]
        valid = past + (row.tokens if row.context else kept)
        for manager in self.pair.managers:
            cells, pages = self.cells[id(manager)], self.rows(manager, request)
            for position in range(past):
                cells.read(request, position, pages)
            for position in range(past, past + row.tokens):
                cells.write(request, position, pages)
            if manager.is_draft:
                for position in range(valid, valid + self.draft_len - 1):
                    cells.write(request, position, pages)
                    assert position < manager.capacity(request)
        self.past[request] = valid

    @rule(stops=st.booleans())
    def settle(self, stops: bool) -> None:
        if self.kept:
            first = [row.request for row in self.scheduler.flying[0]][:1]
            for request in self.scheduler.settle(self.kept.popleft(), first if stops else ()):
                del self.past[request]

    def capacities(self) -> list[dict[int, int]]:
        return [{r: cache.capacity for r, cache in m.caches.items()} for m in self.pair.managers]

    @invariant()
    def pages_belong_to_one_request_and_are_all_accounted_for(self) -> None:
        for manager in self.pair.managers:
            held = [page for cache in manager.caches.values() for page in cache.pages]
            assert len(held) == len(set(held)) and set(held) == manager.pool.held, "pages are lost"
            assert len(held) + manager.pool.free == manager.pool.num_pages, "pages are lost"
            for request, cache in manager.caches.items():
                assert len(cache.pages) == (-(-cache.capacity // self.page_size) if cache.active else 0)
                assert self.observed[id(manager)].get(request, ()) == tuple(cache.pages)
            assert not any(self.observed[id(manager)][r] for r in self.observed[id(manager)] if r not in manager.caches)

    @invariant()
    def histories_only_grow_and_bound_the_device(self) -> None:
        for manager in self.pair.managers:
            for request, cache in manager.caches.items():
                assert cache.capacity >= cache.history
                assert cache.history <= self.past[request] <= cache.history + sum(cache.flying)
                assert cache.history >= self.histories.get(request, 0) or manager.is_draft
        self.histories = {request: cache.history for request, cache in self.pair.target.caches.items()}
        for request in self.scheduler.requests.values():
            if request.phase is Phase.GENERATION and not request.flying:
                history = self.pair.target.caches[request.id].history
                assert history == request.prompt + request.generated - 1 == self.past[request.id]

    @invariant()
    def both_pools_hold_the_same_requests(self) -> None:
        target, draft = self.pair.managers
        assert set(target.caches) == set(draft.caches)
        for request in target.caches:
            assert target.is_request_active(request) == draft.is_request_active(request)

    def teardown(self) -> None:
        """Everything that was submitted is served in the end, and every page comes back."""
        if not self.sound:
            return
        for _ in range(400):
            if not self.scheduler.requests:
                break
            rows = self.scheduler.schedule() if len(self.kept) <= int(self.overlap) else []
            if rows:
                self.scheduler.launch(rows)
                for row in rows:
                    self.run(row, 1)
                self.kept.append([1] * len(rows))
            if self.kept and (len(self.kept) > int(self.overlap) or not rows):
                for request in self.scheduler.settle(self.kept.popleft()):
                    del self.past[request]
        assert not self.scheduler.requests, "requests starve"
        for manager in self.pair.managers:
            assert manager.pool.free == manager.pool.num_pages, "pages are lost"
            assert not self.cells[id(manager)].copies


class Overlapped(Serving):
    overlap = True


QUICK = settings(max_examples=80, stateful_step_count=30, deadline=None)
# A planted defect need not be shrunk.
HUNT = settings(
    max_examples=300,
    stateful_step_count=40,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[HypothesisPhase.generate],
    report_multiple_bugs=False,
)


@pytest.mark.parametrize("machine", [Serving, Overlapped], ids=lambda machine: machine.__name__.lower())
def test_every_sequence_of_steps_is_served_within_its_pages(machine):
    run_state_machine_as_test(machine, settings=QUICK)


class V1Draft(KvManagerV2):
    """A draft cache of the first generation, with the branches that let it follow a V2 scheduler in all but one call."""

    can_suspend = False

    @property
    def suspend_request(self) -> Any:
        raise AttributeError("the manager has no attribute 'suspend_request'")


class UncheckedPair(CachePair):
    """A pair that takes whatever it is given."""

    def __init__(self, target: KvManagerV2, draft: KvManagerV2) -> None:
        self.target, self.draft, self.managers = target, draft, [target, draft]


def test_a_v1_draft_under_a_v2_scheduler_dies_when_a_request_is_suspended():
    class Planted(Serving):
        draft_class, pair_class = V1Draft, UncheckedPair

    with pytest.raises(AttributeError, match="suspend_request"):
        run_state_machine_as_test(Planted, settings=HUNT)


def test_a_v1_draft_is_refused_before_the_first_step():
    with pytest.raises(ManagerMismatch, match="the draft cache is a V1Draft, which cannot suspend"):
        CachePair(KvManagerV2(4, 16), V1Draft(4, 16))


def test_a_draft_cache_without_the_extra_tokens_is_written_past_its_end():
    class Planted(Serving):
        forgets_extra = True

    with pytest.raises(AssertionError, match=r"writes position|assert \d+ < \d+"):
        run_state_machine_as_test(Planted, settings=HUNT)


def test_a_grant_for_one_step_does_not_hold_the_step_in_flight(monkeypatch):
    """Planted: the capacity is history and grant, as if the host had read the step in flight."""
    monkeypatch.setattr(
        RequestCache, "capacity_with", lambda self, granted: self.history + max(granted, *self.flying, 0) + self.extra
    )
    run_state_machine_as_test(Serving, settings=settings(QUICK, max_examples=1))
    with pytest.raises(AssertionError, match=r"(reads|writes) position"):
        run_state_machine_as_test(Overlapped, settings=HUNT)


def test_a_grant_on_top_of_one_that_never_ran_grows_without_end(monkeypatch):
    grow = RequestCache.grow
    monkeypatch.setattr(RequestCache, "grow", lambda self, tokens: grow(self, self.granted + tokens))
    monkeypatch.setattr(Scheduler, "skip", lambda self, rows: None)
    with pytest.raises(AssertionError, match="took more"):
        run_state_machine_as_test(Serving, settings=HUNT)


def test_a_table_kept_over_a_suspension_reads_pages_of_others():
    class Planted(Serving):
        def rows(self, manager: KvManagerV2, request: int) -> list[int]:
            self.__dict__.setdefault("table", {})
            fresh = manager.rows([request])[0]
            kept = self.table.setdefault((id(manager), request), fresh)
            kept += fresh[len(kept) :]
            return kept

    with pytest.raises(AssertionError, match="finds"):
        run_state_machine_as_test(Planted, settings=HUNT)


def test_a_page_that_only_the_history_needs_leaks(monkeypatch):
    """Planted: whole pages are handed out, but only those of the history come back."""

    def close(self: RequestCache) -> None:
        self.pool.give(self.pages[: self.pages_for(self.history)])
        self.pages = []

    monkeypatch.setattr(RequestCache, "close", close)
    with pytest.raises(AssertionError, match="pages are lost"):
        run_state_machine_as_test(Serving, settings=HUNT)


def test_a_draft_pool_outside_admission_aborts_where_a_request_should_wait():
    class Raising(KvManagerV2):
        def try_allocate_generation(self, request: int, draft_len: int) -> bool:
            if not super().try_allocate_generation(request, draft_len):
                raise RuntimeError("draft pool exhausted")
            return True

    class Planted(Serving):
        draft_class = Raising

    with pytest.raises(RuntimeError, match="draft pool exhausted"):
        run_state_machine_as_test(Planted, settings=HUNT)
