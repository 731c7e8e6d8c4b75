"""The eager API: plans on the host from true lengths, for any number of query tokens per request.

It serves prefill and mixed batches, and is what a captured driver is compared with: the same operators, but each
request by itself, at its true width, with fields computed in plain Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from msa.cache import PagedCache
from msa.errors import GeometryError, ShapeMismatch
from msa.geometry import Geometry
from msa.ops import dense_attention, kv_write, proxy_score, select_pages, sparse_gqa
from msa.paging import FlatTable, check_lengths


@dataclass(frozen=True)
class Request:
    """Host-side plan of one request.

    Args:
        first: its first row in the batch.
        qo_len: its query tokens.
        kv_len: its length, tokens, the query tokens included.
        page_table: [1, w] int32, device: exactly the pages it needs.
        kv_lens: [1] int32, device.
        valid_pages, qo_offsets: [Q] int32, device.
        row_requests: [Q] int64, device, zeros.
    """

    first: int
    qo_len: int
    kv_len: int
    page_table: torch.Tensor
    kv_lens: torch.Tensor
    valid_pages: torch.Tensor
    qo_offsets: torch.Tensor
    row_requests: torch.Tensor

    @property
    def rows(self) -> slice:
        """Its rows in the batch."""
        return slice(self.first, self.first + self.qo_len)

    @property
    def width(self) -> int:
        """Pages that it needs."""
        return self.page_table.shape[1]


class EagerBatch:
    """One batch planned on the host. Rows are request-major; request b has ``qo_lens[b]`` of them.

    Args:
        geometry: sizes; ``max_qo_len`` and ``max_batch`` do not bind here.
        qo_lens: query tokens of each request, at least 1.
        kv_lens: length of each request, tokens, the query tokens included. Where it is smaller than ``qo_lens``, the
            leading rows have no token.
        table: flat page table staged from the same lengths.
        device: where the caches live.

    Raises:
        GeometryError: the lists do not match, or a request has no query tokens.
        LengthTooLarge: a request exceeds the capacity.
        StaleTable: table and lengths come from different sources.
    """

    def __init__(
        self,
        geometry: Geometry,
        qo_lens: Sequence[int],
        kv_lens: Sequence[int],
        table: FlatTable,
        device: torch.device | str,
    ) -> None:
        if len(qo_lens) != len(kv_lens) or any(qo_len < 1 for qo_len in qo_lens):
            raise GeometryError(f"qo_lens {list(qo_lens)} for kv_lens {list(kv_lens)}; expected one >= 1 for each")
        check_lengths(kv_lens, geometry, len(kv_lens))
        table.check(kv_lens, geometry)
        self.geometry = geometry
        self.device = device
        self.rows = sum(qo_lens)
        self.requests: list[Request] = []
        slots: list[int] = []
        pages = table.kv_indices.tolist()
        first = 0
        for request, (qo_len, kv_len) in enumerate(zip(qo_lens, kv_lens, strict=True)):
            positions = range(kv_len - qo_len, kv_len)
            base = table.indptr[request]
            slots += [self._slot(position, pages, base) for position in positions]
            self.requests.append(self._plan(first, qo_len, kv_len, positions, table.row(request)))
            first += qo_len
        self.slots = torch.tensor(slots, dtype=torch.int64).to(device)

    def _slot(self, position: int, pages: list[int], base: int) -> int:
        page, offset = divmod(position, self.geometry.page_size)
        return self.geometry.dummy_slot if position < 0 else pages[base + page] * self.geometry.page_size + offset

    def _plan(self, first: int, qo_len: int, kv_len: int, positions: range, row: torch.Tensor) -> Request:
        def put(values: list[int], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype).to(self.device)

        return Request(
            first=first,
            qo_len=qo_len,
            kv_len=kv_len,
            page_table=row.unsqueeze(0),
            kv_lens=put([kv_len], torch.int32),
            valid_pages=put([self.geometry.pages(position + 1) for position in positions], torch.int32),
            qo_offsets=put(list(positions), torch.int32),
            row_requests=put([0] * qo_len, torch.int64),
        )

    def write(self, cache: PagedCache, k: torch.Tensor, v: torch.Tensor, index_k: torch.Tensor | None = None) -> None:
        """Keys and values of all rows stand in their slots. Shapes as in `DecodeDriver.write`, T rows in all.

        Raises:
            ShapeMismatch: index keys without an index cache, or the other way round.
        """
        if (index_k is None) != (cache.index_k is None):
            raise ShapeMismatch("index keys and an index cache belong together; dense layers have neither")
        kv_write(cache.k, k, self.slots)
        kv_write(cache.v, v, self.slots)
        if index_k is not None and cache.index_k is not None:
            kv_write(cache.index_k, index_k, self.slots)

    def score(self, index_q: torch.Tensor, cache: PagedCache) -> list[torch.Tensor]:
        """Proxy scores of each request, fp32 [Hidx, Q, w] at its own width; -inf where a row does not see a page.

        Args:
            index_q: [T, Hidx, D], device.

        Raises:
            ShapeMismatch: the cache is a dense layer's.
        """
        if cache.index_k is None:
            raise ShapeMismatch("this cache has no index keys; allocate it with sparse=True")
        scores = []
        for request in self.requests:
            shape = (self.geometry.index_heads, request.qo_len, request.width)
            mine = torch.full(shape, float("-inf"), device=self.device)
            if request.width:
                rows = index_q[request.rows]
                proxy_score(mine, rows, cache.index_k, request.page_table, request.kv_lens, request.qo_len)
            scores.append(mine)
        return scores

    def select(self, scores: Sequence[torch.Tensor]) -> torch.Tensor:
        """Selected pages int32 [T, Hkv, K] of all rows, from the scores of each request."""
        geometry = self.geometry
        shape = (self.rows, geometry.kv_heads, geometry.top_k)
        page_ids = torch.full(shape, -1, dtype=torch.int32, device=self.device)
        for request, mine in zip(self.requests, scores, strict=True):
            if request.width:
                ids = page_ids[request.rows]
                select_pages(ids, mine, request.valid_pages, geometry.init_pages, geometry.local_pages)
        return page_ids

    def attend_sparse(self, q: torch.Tensor, cache: PagedCache, page_ids: torch.Tensor) -> torch.Tensor:
        """Attention dtype [T, Hq, D] over the selected pages. ``q`` [T, Hq, D], ``page_ids`` [T, Hkv, K], device."""
        out = torch.zeros(q.shape, dtype=self.geometry.dtype, device=self.device)
        for request in self.requests:
            if not request.width:
                continue
            rows, true_pages = request.rows, min(self.geometry.top_k, request.width)
            sparse_gqa(
                out[rows],
                q[rows],
                cache.k,
                cache.v,
                page_ids[rows, :, :true_pages].contiguous(),
                request.page_table,
                request.row_requests,
                request.kv_lens,
                request.qo_offsets,
                self.geometry.scale,
            )
        return out

    def attend_dense(self, q: torch.Tensor, cache: PagedCache, heads_at_once: int = 1) -> torch.Tensor:
        """Attention dtype [T, Hq, D] over everything visible. ``q`` [T, Hq, D], device."""
        out = torch.zeros(q.shape, dtype=self.geometry.dtype, device=self.device)
        for request in self.requests:
            if not request.width:
                continue
            dense_attention(
                out[request.rows],
                q[request.rows],
                cache.k,
                cache.v,
                request.page_table,
                request.kv_lens,
                request.qo_len,
                self.geometry.scale,
                heads_at_once,
            )
        return out

    def sparse_layer(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        index_q: torch.Tensor,
        index_k: torch.Tensor,
        cache: PagedCache,
    ) -> torch.Tensor:
        """A sparse layer's step: write, score, select, attend. Shapes as in `DecodeDriver.sparse_layer`."""
        self.write(cache, k, v, index_k)
        return self.attend_sparse(q, cache, self.select(self.score(index_q, cache)))

    def dense_layer(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cache: PagedCache) -> torch.Tensor:
        """A dense layer's step: write, attend."""
        self.write(cache, k, v)
        return self.attend_dense(q, cache)
