"""The eager API: plans on the host from true lengths, for any number of query tokens per request.

It serves prefill and mixed batches, and is what a captured driver is compared with: the same operators, but each
request by itself, at its true width, with fields computed in plain Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from msa.cache import PagedCache
from msa.driver import KERNELS
from msa.errors import GeometryError, ShapeMismatch
from msa.geometry import ALIGNMENT, Geometry
from msa.paging import FlatTable, check_lengths
from msa.passes import Passes, PortablePasses, index_keys


@dataclass(frozen=True)
class Request:
    """Host-side plan of one request, or of consecutive rows of one.

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

    With Triton kernels a request of at most ``geometry.max_qo_len`` query tokens gets the launches that a driver of as
    many query tokens makes, and with them its bits. A longer one runs in pieces of that many rows, one after the other:
    right, and not fast; its bits may depend on where the pieces begin.

    Args:
        geometry: sizes; ``max_qo_len`` and ``max_batch`` do not bind here.
        qo_lens: query tokens of each request, at least 1.
        kv_lens: length of each request, tokens, the query tokens included. Where it is smaller than ``qo_lens``, the
            leading rows have no token.
        table: flat page table staged from the same lengths.
        device: where the caches live.
        kernels: "portable" or "triton", as in `DecodeDriver`.

    Raises:
        GeometryError: there are no such kernels, the lists do not match, or a request has no query tokens.
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
        *,
        kernels: str = "portable",
    ) -> None:
        if kernels not in KERNELS:
            raise GeometryError(f"kernels {kernels!r}, expected one of {', '.join(KERNELS)}")
        if len(qo_lens) != len(kv_lens) or any(qo_len < 1 for qo_len in qo_lens):
            raise GeometryError(f"qo_lens {list(qo_lens)} for kv_lens {list(kv_lens)}; expected one >= 1 for each")
        check_lengths(kv_lens, geometry, len(kv_lens))
        table.check(kv_lens, geometry)
        self.geometry = geometry
        self.device = device
        self.rows = sum(qo_lens)
        self.requests: list[Request] = []
        self.pieces: list[list[Request]] = []
        most = geometry.max_qo_len if kernels == "triton" else max(self.rows, 1)
        slots: list[int] = []
        pages = table.kv_indices.tolist()
        first = 0
        for request, (qo_len, kv_len) in enumerate(zip(qo_lens, kv_lens, strict=True)):
            base = table.indptr[request]
            slots += [self._slot(position, pages, base) for position in range(kv_len - qo_len, kv_len)]
            whole = self._plan(first, qo_len, kv_len, table.row(request))
            self.requests.append(whole)
            self.pieces.append([whole] if qo_len <= most else self._cut(whole, most))
            first += qo_len
        self.slots = torch.tensor(slots, dtype=torch.int64).to(device)
        self.passes: Passes = PortablePasses(geometry)
        if kernels == "triton":
            # Triton reads its mode when it is imported, and portable users need not have it.
            from msa.ops.triton.passes import TritonPasses

            self.passes = TritonPasses(geometry, most, device)

    def _slot(self, position: int, pages: list[int], base: int) -> int:
        page, offset = divmod(position, self.geometry.page_size)
        return self.geometry.dummy_slot if position < 0 else pages[base + page] * self.geometry.page_size + offset

    def _plan(self, first: int, qo_len: int, kv_len: int, row: torch.Tensor) -> Request:
        """The fields of ``qo_len`` rows that end at ``kv_len``; ``row`` [w] int32, device, their request's pages."""
        positions = range(kv_len - qo_len, kv_len)

        def put(values: list[int], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype).to(self.device)

        return Request(
            first=first,
            qo_len=qo_len,
            kv_len=kv_len,
            page_table=row.unsqueeze(0),
            kv_lens=put([max(kv_len, 0)], torch.int32),
            valid_pages=put([self.geometry.pages(position + 1) for position in positions], torch.int32),
            qo_offsets=put(list(positions), torch.int32),
            row_requests=put([0] * qo_len, torch.int64),
        )

    def _cut(self, whole: Request, most: int) -> list[Request]:
        """The request in pieces of at most ``most`` rows, each as long as its last row sees."""
        pieces = []
        for start in range(0, whole.qo_len, most):
            count = min(most, whole.qo_len - start)
            end = whole.kv_len - whole.qo_len + start + count
            pieces.append(self._plan(whole.first + start, count, end, whole.page_table[0]))
        return pieces

    def write(self, cache: PagedCache, k: torch.Tensor, v: torch.Tensor, index_k: torch.Tensor | None = None) -> None:
        """Keys and values of all rows stand in their slots. Shapes as in `DecodeDriver.write`, T rows in all.

        Raises:
            ShapeMismatch: index keys without an index cache, or the other way round.
        """
        if (index_k is None) != (cache.index_k is None):
            raise ShapeMismatch("index keys and an index cache belong together; dense layers have neither")
        self.passes.write(cache, k, v, index_k, self.slots)

    def score(self, index_q: torch.Tensor, cache: PagedCache) -> list[torch.Tensor]:
        """Proxy scores of each request, fp32 [Hidx, Q, w] at its own width; -inf where a row does not see a page.

        Args:
            index_q: [T, Hidx, D], device.

        Raises:
            ShapeMismatch: the cache is a dense layer's.
        """
        index_keys(cache)
        scores = []
        for request, pieces in zip(self.requests, self.pieces, strict=True):
            parts = []
            for piece in pieces:
                shape = (self.geometry.index_heads, piece.qo_len, piece.width)
                mine = torch.full(shape, float("-inf"), device=self.device)
                if request.width:
                    rows = _aligned(index_q[piece.rows])
                    self.passes.score(mine, rows, cache, piece.page_table, piece.kv_lens, piece.qo_len)
                parts.append(mine)
            scores.append(parts[0] if len(parts) == 1 else torch.cat(parts, 1))
        return scores

    def select(self, scores: Sequence[torch.Tensor]) -> torch.Tensor:
        """Selected pages int32 [T, Hkv, K] of all rows, from the scores of each request."""
        geometry = self.geometry
        shape = (self.rows, geometry.kv_heads, geometry.top_k)
        page_ids = torch.full(shape, -1, dtype=torch.int32, device=self.device)
        for request, mine in zip(self.requests, scores, strict=True):
            if request.width:
                ids = _aligned(page_ids[request.rows])
                self.passes.select(ids, _aligned(mine), request.valid_pages)
                page_ids[request.rows].copy_(ids)
        return page_ids

    def attend_sparse(self, q: torch.Tensor, cache: PagedCache, page_ids: torch.Tensor) -> torch.Tensor:
        """Attention dtype [T, Hq, D] over the selected pages. ``q`` [T, Hq, D], ``page_ids`` [T, Hkv, K], device."""
        out = torch.zeros(q.shape, dtype=self.geometry.dtype, device=self.device)
        for piece in self._live():
            rows, listed = piece.rows, self.geometry.top_k
            if isinstance(self.passes, PortablePasses):
                # Entries behind the pages that there are cost time only. The kernels split a row by its list.
                listed = min(listed, piece.width)
            self.passes.attend_sparse(
                out[rows],
                _aligned(q[rows]),
                cache,
                _aligned(page_ids[rows, :, :listed]),
                piece.page_table,
                piece.row_requests,
                piece.kv_lens,
                piece.qo_offsets,
            )
        return out

    def attend_dense(self, q: torch.Tensor, cache: PagedCache, heads_at_once: int = 1) -> torch.Tensor:
        """Attention dtype [T, Hq, D] over everything visible. ``q`` [T, Hq, D], device."""
        out = torch.zeros(q.shape, dtype=self.geometry.dtype, device=self.device)
        for piece in self._live():
            self.passes.attend_dense(
                out[piece.rows],
                _aligned(q[piece.rows]),
                cache,
                piece.page_table,
                piece.kv_lens,
                piece.qo_len,
                heads_at_once,
            )
        return out

    def _live(self) -> list[Request]:
        """The pieces of all requests that have pages."""
        return [piece for pieces in self.pieces for piece in pieces if piece.width]

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


def _aligned(rows: torch.Tensor) -> torch.Tensor:
    """The rows, copied if they are not contiguous or do not start where the kernels need it."""
    whole = rows.contiguous()
    return whole.clone() if whole.data_ptr() % ALIGNMENT else whole
