"""The sizes of a sparse-attention model shard and of its paged cache, checked once."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from msa.errors import GeometryError

TILE_ROWS = 16
# Of the addresses that the Triton kernels take, bytes.
ALIGNMENT = 16
MOST_PAGES = 2**20
FP8 = torch.float8_e4m3fn
_M3_HEADS = {1: (64, 4), 2: (32, 2), 4: (16, 1), 8: (8, 1)}


@dataclass(frozen=True)
class Geometry:
    """Sizes that are frozen for the life of a driver.

    Args:
        q_heads: query heads (Hq).
        kv_heads: KV heads (Hkv); divides ``q_heads``.
        index_heads: index-query heads (Hidx); one per KV head.
        head_dim: D, of main and index heads alike.
        page_size: P, tokens per page, which is also the sparse block; a power of two.
        top_k: K, pages that a query row attends to.
        init_pages: leading pages that are always selected.
        local_pages: trailing pages that are always selected, the row's own page among them.
        max_qo_len: most query tokens per request in a decode step, 1 + draft_len.
        max_batch: most requests in a batch (B).
        max_pages: W, entries of a row of the page table.
        max_seq_len: longest sequence that the engine admits, tokens.
        num_pages: pages of the pool; the cache has one more, which takes the writes of padding rows.
        dtype: of queries and outputs, and of the caches unless they have a type of their own.
        kv_dtype: of keys and values in the cache, for instance fp8 e4m3; ``dtype`` if left out.
        index_dtype: of index keys in the cache; ``dtype`` if left out.

    Raises:
        GeometryError: some of them cannot be served; every objection is named.
    """

    q_heads: int
    kv_heads: int
    index_heads: int
    head_dim: int
    page_size: int
    top_k: int
    max_batch: int
    max_pages: int
    num_pages: int
    max_seq_len: int
    init_pages: int = 0
    local_pages: int = 1
    max_qo_len: int = 8
    dtype: torch.dtype = torch.bfloat16
    kv_dtype: torch.dtype | None = None
    index_dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        objections = [
            f"{name} = {getattr(self, name)!r}, expected a whole number >= 1" for name in self._not_positive()
        ]
        if not objections:
            objections = list(self._objections())
        if objections:
            raise GeometryError(f"no such geometry can be served: {'; '.join(objections)}")

    @staticmethod
    def m3(
        tensor_parallel: int = 1,
        *,
        max_batch: int,
        max_pages: int,
        num_pages: int,
        max_seq_len: int | None = None,
        max_qo_len: int = 8,
        dtype: torch.dtype = torch.bfloat16,
        kv_dtype: torch.dtype | None = None,
        index_dtype: torch.dtype | None = None,
    ) -> Geometry:
        """The geometry of one MiniMax-M3 shard: D 128, pages of 128 tokens, top-k 16, one local page.

        Raises:
            GeometryError: ``tensor_parallel`` is none of 1, 2, 4, 8, or a size cannot be served.
        """
        if tensor_parallel not in _M3_HEADS:
            raise GeometryError(f"tensor_parallel = {tensor_parallel}, expected one of {sorted(_M3_HEADS)}")
        q_heads, kv_heads = _M3_HEADS[tensor_parallel]
        return Geometry(
            q_heads=q_heads,
            kv_heads=kv_heads,
            index_heads=kv_heads,
            head_dim=128,
            page_size=128,
            top_k=16,
            max_batch=max_batch,
            max_pages=max_pages,
            num_pages=num_pages,
            max_seq_len=max_pages * 128 if max_seq_len is None else max_seq_len,
            max_qo_len=max_qo_len,
            dtype=dtype,
            kv_dtype=kv_dtype,
            index_dtype=index_dtype,
        )

    @property
    def stored_kv(self) -> torch.dtype:
        """What keys and values are stored as."""
        return self.dtype if self.kv_dtype is None else self.kv_dtype

    @property
    def stored_index(self) -> torch.dtype:
        """What index keys are stored as."""
        return self.dtype if self.index_dtype is None else self.index_dtype

    @property
    def group(self) -> int:
        """Query heads per KV head (G)."""
        return self.q_heads // self.kv_heads

    @property
    def scale(self) -> float:
        """What logits are multiplied with before the softmax, D ** -0.5."""
        return float(self.head_dim**-0.5)

    @property
    def capacity(self) -> int:
        """Longest sequence that can be served: min(table capacity, ``max_seq_len``), tokens."""
        return min(self.max_pages * self.page_size, self.max_seq_len)

    @property
    def dense_pages(self) -> int:
        """Width of dense attention, pages: what `capacity` needs, whatever the batch at hand."""
        return self.pages(self.capacity)

    @property
    def dummy_slot(self) -> int:
        """Slot that takes the writes of rows without a token: the first one behind the pool."""
        return self.num_pages * self.page_size

    def pages(self, tokens: int) -> int:
        """Pages that ``tokens`` tokens occupy."""
        return -(-max(tokens, 0) // self.page_size)

    def _not_positive(self) -> list[str]:
        heads = ("q_heads", "kv_heads", "index_heads", "head_dim")
        limits = ("page_size", "top_k", "max_qo_len", "max_batch", "max_pages", "num_pages", "max_seq_len")
        return [name for name in (*heads, *limits) if not _is_count(getattr(self, name), 1)]

    def _objections(self) -> list[str]:
        checks = (
            (self.q_heads % self.kv_heads == 0, f"kv_heads {self.kv_heads} does not divide q_heads {self.q_heads}"),
            (
                self.group <= TILE_ROWS,
                f"{self.group} query heads share a KV head, but a tile holds {TILE_ROWS} rows",
            ),
            (
                self.index_heads == self.kv_heads,
                f"{self.index_heads} index heads for {self.kv_heads} KV heads, expected one each",
            ),
            (
                self.page_size >= 8 and self.page_size & (self.page_size - 1) == 0,
                f"page_size {self.page_size} is no power of two >= 8",
            ),
            (self.head_dim % 8 == 0, f"head_dim {self.head_dim} is no multiple of 8"),
            (
                _is_count(self.init_pages, 0) and _is_count(self.local_pages, 1),
                f"init_pages {self.init_pages} or local_pages {self.local_pages}, expected >= 0 and >= 1",
            ),
            (
                self.init_pages + self.local_pages <= self.top_k,
                f"{self.init_pages} + {self.local_pages} forced pages do not fit into top_k {self.top_k}",
            ),
            (self.max_pages <= MOST_PAGES, f"max_pages {self.max_pages} exceeds {MOST_PAGES}"),
            (self.max_qo_len <= 8, f"max_qo_len {self.max_qo_len}, a decode step takes 1 to 8 query tokens"),
            (
                self.dtype.is_floating_point and self.dtype.itemsize > 1,
                f"dtype {self.dtype} is no floating-point type of two bytes or more",
            ),
            (
                self.stored_kv in (self.dtype, FP8),
                f"kv_dtype {self.kv_dtype}, expected {self.dtype} or {FP8}",
            ),
            (
                self.stored_index in (self.dtype, FP8),
                f"index_dtype {self.index_dtype}, expected {self.dtype} or {FP8}",
            ),
        )
        return [words for holds, words in checks if not holds]


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
