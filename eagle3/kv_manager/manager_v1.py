"""The first generation of cache managers: sequences that grow and rewind. It cannot suspend."""

from __future__ import annotations

from eagle3.errors import NothingInFlight, OutOfPages
from eagle3.kv_manager.manager import KvManager


class KvManagerV1(KvManager):
    """Sequences of tokens in one layout for all layers.

    A scheduler that suspends requests cannot use it: it has no `suspend_request`, on purpose.
    """

    version = 1

    def add_sequence(self, request: int, tokens: int) -> None:
        """The request has a cache for its prompt.

        Raises:
            OutOfPages: the pool lacks pages; the request has no cache then.
            RequestExists: it has one already.
        """
        self._add(request)
        try:
            self.add_token(request, tokens)
        except OutOfPages:
            self.free_resources(request)
            raise

    def add_token(self, request: int, count: int = 1) -> None:
        """The request has ``count`` tokens more.

        Raises:
            OutOfPages: the pool lacks pages; nothing is added.
            UnknownRequest: it has no cache.
        """
        cache = self.cache(request)
        if not cache.grow(count):
            raise OutOfPages(f"request {request}: {count} tokens more need pages, {self.pool.free} are free")
        cache.launch()
        cache.settle(count)
        self._tell(request)

    def rewind_kv_cache(self, request: int, count: int) -> None:
        """The request's last ``count`` tokens are gone, and so are the pages that only they needed.

        Raises:
            NothingInFlight: it has fewer tokens.
            UnknownRequest: it has no cache.
        """
        cache = self.cache(request)
        if not 0 <= count <= cache.history:
            raise NothingInFlight(
                f"request {request}: rewind by {count} of {cache.history} tokens; only drafts that were added can go"
            )
        cache.history -= count
        cache.cancel()
        self._tell(request)

    def needed_pages(self, request: int, count: int) -> int:
        """Pages that ``count`` tokens more would take from the pool."""
        cache = self.cache(request)
        return cache.pages_for(cache.capacity_with(count)) - len(cache.pages)
