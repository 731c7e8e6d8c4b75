"""The second generation of cache managers: steps are granted, launched and settled, and requests can be suspended."""

from __future__ import annotations

from eagle3.kv_manager.manager import CacheConfig, KvManager
from eagle3.kv_manager.tier import Tier


class KvManagerV2(KvManager):
    """Caches with capacity and history.

    Arguments as of `KvManager`.

    Attributes:
        tier: keeps the contents of suspended requests; without one they are lost, as in a simulation.
    """

    version = 2
    can_suspend = True
    tier: Tier | None = None

    @classmethod
    def fixed_tokens(cls, page_size: int) -> int:
        """One page: it takes the writes of padding rows."""
        return page_size

    def prepare_context(self, request: int) -> bool:
        """The request has an active cache, empty if it is new; False if the pool lacks pages to resume it."""
        if request not in self.caches:
            self._add(request)
            return True
        return self._resume(request)

    def resize_context(self, request: int, tokens: int) -> bool:
        """The next chunk of a prompt may be written; False if the pool lacks pages.

        A request whose first chunk does not fit is suspended: it holds nothing that would be worth its pages.
        """
        cache = self.cache(request)
        if not cache.grow(tokens):
            if not cache.history and not cache.flying:
                self.suspend_request(request)
            return False
        self._tell(request)
        return True

    def try_allocate_generation(self, request: int, draft_len: int) -> bool:
        """The request is active and its next step may write 1 + ``draft_len`` tokens; False if the pool lacks pages.

        Called again before the step is launched, it replaces the grant: another draft length changes the capacity by
        the difference, and a step that was skipped by nothing.
        """
        if not self._resume(request) or not self.cache(request).grow(1 + draft_len):
            return False
        self._tell(request)
        return True

    def launch(self, request: int) -> None:
        """The granted step is in flight."""
        self.cache(request).launch()

    def cancel(self, request: int) -> None:
        """The granted step will not run."""
        self.cache(request).cancel()
        self._tell(request)

    def update_resources(self, request: int, kept: int) -> None:
        """The oldest step in flight kept ``kept`` of its tokens: the rest is rewound.

        Raises:
            NothingInFlight, HistoryViolated, UnknownRequest: there is no such step.
        """
        self.cache(request).settle(kept)
        self._tell(request)

    def suspend_request(self, request: int) -> None:
        """The request holds no pages; it does nothing if that is so already."""
        cache = self.cache(request)
        if not cache.active:
            return
        if self.tier is not None:
            # Before the pages are given back: the next owner may write at once.
            self.tier.store(request, cache.pages)
        cache.suspend()
        self._tell(request)

    def is_request_active(self, request: int) -> bool:
        """Whether the request has a cache whose pages are in the pool."""
        return request in self.caches and self.caches[request].active

    def free_resources(self, request: int) -> None:
        """The request has no cache, its pages are free and nothing of it is kept elsewhere."""
        super().free_resources(request)
        if self.tier is not None:
            self.tier.drop(request)

    def _resume(self, request: int) -> bool:
        cache = self.cache(request)
        if cache.active:
            return True
        if not cache.resume():
            return False
        if self.tier is not None:
            self.tier.load(request, cache.pages)
        self._tell(request)
        return True


class SparseKvManagerV2(KvManagerV2):
    """Caches of layers that have index keys beside keys and values; V2 whatever the flags say."""

    @classmethod
    def bytes_per_token(cls, config: CacheConfig) -> int:
        """One index key per layer on top of keys and values."""
        return super().bytes_per_token(config) + config.layers * config.index_dim * config.element_bytes
