"""The cache of one request: its tokens, what is granted and in flight beyond them, and the pages for all of it."""

from __future__ import annotations

from collections import deque

from eagle3.errors import CacheNotActive, HistoryViolated, NothingInFlight
from eagle3.kv_manager.allocator import PagePool


class RequestCache:
    """Pages for the tokens that a request has, and for what its coming steps may write.

    ``capacity`` follows from the other numbers, so it can neither fall below the history nor grow in steps that never
    run: a step's tokens are granted once, launched, and settled by what was kept.

    Args:
        request: id.
        pool: where pages come from.
        page_size: P, tokens per page.
        extra: tokens that a step may write beyond those granted, 0 or more.

    Attributes:
        history: tokens with valid KV, as far as the host has read them.
        granted: tokens of the next step, which is not launched; 0 if there is none.
        flying: tokens of each step that is launched and not settled, oldest first.
        pages: physical pages, in the order of the tokens; empty while suspended.
        active: whether the pages are in the pool.
    """

    def __init__(self, request: int, pool: PagePool, page_size: int, extra: int = 0) -> None:
        self.request = request
        self.pool = pool
        self.page_size = page_size
        self.extra = extra
        self.history = 0
        self.granted = 0
        self.flying: deque[int] = deque()
        self.pages: list[int] = []
        self.active = True

    @property
    def capacity(self) -> int:
        """Tokens that pages are held for, or would be if the cache were active."""
        return self.capacity_with(self.granted)

    def capacity_with(self, granted: int) -> int:
        """The capacity if ``granted`` tokens were granted to the next step."""
        tokens = self.history + sum(self.flying) + granted
        return tokens + self.extra if tokens else 0

    def pages_for(self, capacity: int) -> int:
        """Pages that ``capacity`` tokens occupy."""
        return -(-capacity // self.page_size)

    def grow(self, tokens: int) -> bool:
        """The next step may write ``tokens`` tokens; False, and nothing has changed, if the pool lacks pages.

        A grant that was not launched is replaced: a step that is skipped or scheduled again grows nothing.

        Raises:
            CacheNotActive: the cache is suspended.
        """
        self._must_be_active("grow")
        missing = self.pages_for(self.capacity_with(tokens)) - len(self.pages)
        if missing > self.pool.free:
            return False
        self.granted = tokens
        self._fit()
        return True

    def cancel(self) -> None:
        """The next step will not run: what was granted to it is given back."""
        self.granted = 0
        if self.active:
            self._fit()

    def launch(self) -> None:
        """The granted step is in flight.

        Raises:
            NothingInFlight: nothing was granted.
            CacheNotActive: the cache is suspended.
        """
        self._must_be_active("launch")
        if not self.granted:
            raise NothingInFlight(f"request {self.request} is launched without a grant; grow its cache first")
        self.flying.append(self.granted)
        self.granted = 0

    def settle(self, kept: int) -> None:
        """The oldest step in flight kept ``kept`` of its tokens; pages behind what may still be written are free.

        Under overlap the scheduler may have suspended the cache already: then only the numbers change.

        Raises:
            NothingInFlight: no step is in flight.
            HistoryViolated: more tokens kept than granted, or fewer than none.
        """
        if not self.flying:
            raise NothingInFlight(
                f"request {self.request} has no step in flight to settle; it was settled or freed before"
            )
        if not 0 <= kept <= self.flying[0]:
            raise HistoryViolated(
                f"request {self.request}: {kept} tokens kept of a step that was granted {self.flying[0]}; "
                "grant 1 + draft_len to each step"
            )
        self.flying.popleft()
        self.history += kept
        if self.active:
            self._fit()

    def suspend(self) -> list[int]:
        """The pages that held the request's tokens, given back to the pool; a grant is cancelled.

        Raises:
            CacheNotActive: the cache is suspended.
        """
        self._must_be_active("suspend")
        self.cancel()
        pages, self.pages = self.pages, []
        self.pool.give(pages)
        self.active = False
        return pages

    def resume(self) -> bool:
        """The cache has pages again, other ones in general; False, and nothing has changed, if the pool lacks them."""
        if self.active:
            return True
        needed = self.pages_for(self.capacity)
        if needed > self.pool.free:
            return False
        self.pages = self.pool.take(needed)
        self.active = True
        return True

    def close(self) -> None:
        """Every page is free."""
        self.pool.give(self.pages)
        self.pages = []
        self.active = False

    def _fit(self) -> None:
        """Pages are exactly those of the capacity."""
        needed = self.pages_for(self.capacity)
        if needed > len(self.pages):
            self.pages += self.pool.take(needed - len(self.pages))
        else:
            self.pool.give(self.pages[needed:])
            del self.pages[needed:]

    def _must_be_active(self, what: str) -> None:
        if not self.active:
            raise CacheNotActive(f"cannot {what} the cache of request {self.request}: it is suspended; resume it first")
