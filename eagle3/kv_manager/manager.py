"""What both generations of cache managers have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eagle3.errors import KvError, RequestExists, UnknownRequest
from eagle3.kv_manager.allocator import PagePool
from eagle3.kv_manager.cache import RequestCache

Observer = Callable[[int, tuple[int, ...]], None]


@dataclass(frozen=True)
class CacheConfig:
    """The layers that a manager holds caches for.

    Args:
        layers: number of layers.
        kv_heads: KV heads (Hkv).
        head_dim: D.
        element_bytes: of an element of K and V.
        index_dim: dimension of index keys; 0 without sparse attention.
        needs_v2: the model cannot be served by V1.
        mixed_windows: some layers slide, others do not.
    """

    layers: int
    kv_heads: int
    head_dim: int
    element_bytes: int = 2
    index_dim: int = 0
    needs_v2: bool = False
    mixed_windows: bool = False

    @property
    def sparse(self) -> bool:
        """Whether the layers have index keys."""
        return self.index_dim > 0


class KvManager:
    """Caches of requests over one page pool.

    Args:
        num_pages: of the pool.
        page_size: P, tokens per page.
        extra_tokens: that a step may write beyond what it is granted; draft_len - 1 where draft layers live.
        is_draft: whether the layers are the draft's.

    Attributes:
        caches: by request id.
        observers: called with a request and its pages whenever these have changed; no pages once it is gone.
    """

    version = 0
    # A scheduler of the second generation suspends requests; it can only serve managers that can.
    can_suspend = False
    # Whether draft layers may be added to the target's pool.
    supports_shared_draft_layers = True

    def __init__(self, num_pages: int, page_size: int, *, extra_tokens: int = 0, is_draft: bool = False) -> None:
        if page_size < 1 or extra_tokens < 0:
            raise KvError(f"page_size {page_size} and extra_tokens {extra_tokens}; expected at least 1 and 0")
        self.pool = PagePool(num_pages)
        self.page_size = page_size
        self.extra_tokens = extra_tokens
        self.is_draft = is_draft
        self.caches: dict[int, RequestCache] = {}
        self.observers: list[Observer] = []

    @classmethod
    def bytes_per_token(cls, config: CacheConfig) -> int:
        """Bytes that a token takes in all layers."""
        return config.layers * 2 * config.kv_heads * config.head_dim * config.element_bytes

    @classmethod
    def fixed_tokens(cls, page_size: int) -> int:
        """Tokens' worth of memory that is there without any request."""
        return 0

    def cache(self, request: int) -> RequestCache:
        """The cache of a request.

        Raises:
            UnknownRequest: it has none.
        """
        if request not in self.caches:
            raise UnknownRequest(f"request {request} has no cache here; it was never added, or is freed already")
        return self.caches[request]

    def capacity(self, request: int) -> int:
        """Tokens that pages of a request are held for."""
        return self.cache(request).capacity

    def rows(self, requests: Sequence[int]) -> list[list[int]]:
        """Physical pages of each request, as they are now: what a page table is staged from before each step.

        Read anew for each step, because a resumed request has other pages.
        """
        return [list(self.cache(request).pages) for request in requests]

    def free_resources(self, request: int) -> None:
        """The request has no cache and its pages are free.

        Raises:
            UnknownRequest: it has none.
        """
        self.cache(request).close()
        del self.caches[request]
        self._tell(request)

    def _add(self, request: int) -> RequestCache:
        if request in self.caches:
            raise RequestExists(f"request {request} has a cache already; free it before the id is used again")
        cache = RequestCache(request, self.pool, self.page_size, self.extra_tokens)
        self.caches[request] = cache
        return cache

    def _tell(self, request: int) -> None:
        pages = tuple(self.caches[request].pages) if request in self.caches else ()
        for observer in self.observers:
            observer(request, pages)
