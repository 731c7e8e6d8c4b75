"""Page tables: padded rows of a fixed stride, and the flat form of indices with row pointers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from msa.errors import BatchTooLarge, LengthTooLarge, PageOutOfRange, StaleTable
from msa.geometry import Geometry

UNUSED = -1


def page_index(page_table: torch.Tensor, pages: int) -> torch.Tensor:
    """The table as int64 with every entry inside the cache, device; an entry of another kind is clamped.

    Clamping keeps unused entries (-1, or anything left there) from being dereferenced; what is then loaded is masked.

    Args:
        page_table: [B, W] int32, device.
        pages: of the cache.
    """
    return page_table.to(torch.int64).clamp_(0, pages - 1)


def pad_rows(
    rows: Sequence[Sequence[int]], kv_lens: Sequence[int], geometry: Geometry, batch: int | None = None
) -> torch.Tensor:
    """The padded page table int32 [batch, W] on the host: row b's pages, then -1.

    Args:
        rows: physical pages of each request, at least as many as its length needs; the surplus is left out.
        kv_lens: length of each request, tokens.
        batch: rows of the table, behind the requests -1; as many as requests by default.

    Raises:
        BatchTooLarge: more requests than rows.
        LengthTooLarge: a request needs more tokens or pages than a row serves.
        PageOutOfRange: a page that a request needs is missing or not in the pool.
    """
    batch = len(kv_lens) if batch is None else batch
    check_lengths(kv_lens, geometry, batch)
    table = torch.full((batch, geometry.max_pages), UNUSED, dtype=torch.int32)
    for request, pages in enumerate(needed_pages(rows, kv_lens, geometry)):
        table[request, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
    return table


def check_lengths(kv_lens: Sequence[int], geometry: Geometry, batch: int) -> None:
    """Pass if ``batch`` rows of a table can hold these lengths (tokens, host).

    Raises:
        BatchTooLarge: more requests than rows.
        LengthTooLarge: a request is longer than the capacity, or negative; every such request is named.
    """
    if len(kv_lens) > batch:
        raise BatchTooLarge(f"{len(kv_lens)} requests for {batch} rows; split the batch or allocate a larger driver")
    wrong = [f"request {b}: {length}" for b, length in enumerate(kv_lens) if not 0 <= length <= geometry.capacity]
    if wrong:
        raise LengthTooLarge(
            f"lengths outside 0..{geometry.capacity} tokens ({', '.join(wrong)}); "
            "raise max_pages and max_seq_len, or refuse the requests earlier"
        )


def needed_pages(rows: Sequence[Sequence[int]], kv_lens: Sequence[int], geometry: Geometry) -> list[list[int]]:
    """The pages that each request's length needs, checked, host.

    Raises:
        PageOutOfRange: one is missing or not in the pool.
    """
    needed, wrong = [], []
    for request, length in enumerate(kv_lens):
        count = geometry.pages(length)
        pages = [int(page) for page in rows[request][:count]] if request < len(rows) else []
        if len(pages) < count:
            wrong.append(f"request {request} has {len(pages)} of {count} pages")
        wrong += [f"request {request} names page {page}" for page in pages if not 0 <= page < geometry.num_pages]
        needed.append(pages)
    if wrong:
        raise PageOutOfRange(f"the pool has pages 0..{geometry.num_pages - 1}, but {'; '.join(wrong)}")
    return needed


@dataclass(frozen=True)
class FlatTable:
    """The pages of all requests back to back; row pointers say where each one's begin.

    Table and pointers come from the same lengths, always: a row that loses a page moves every row behind it.

    Args:
        kv_indices: [indptr[-1]] int32, device: physical pages.
        indptr: [B + 1], host: request b owns kv_indices[indptr[b]:indptr[b + 1]].
    """

    kv_indices: torch.Tensor
    indptr: tuple[int, ...]

    @staticmethod
    def stage(
        rows: Sequence[Sequence[int]],
        kv_lens: Sequence[int],
        geometry: Geometry,
        device: torch.device | str,
    ) -> FlatTable:
        """Indices and pointers from one source, the lengths.

        Raises:
            PageOutOfRange: a page that a request needs is missing or not in the pool.
        """
        pages = needed_pages(rows, kv_lens, geometry)
        indptr = [0]
        for row in pages:
            indptr.append(indptr[-1] + len(row))
        flat = torch.tensor([page for row in pages for page in row], dtype=torch.int32).to(device)
        return FlatTable(flat, tuple(indptr))

    def row(self, request: int) -> torch.Tensor:
        """Pages [w] int32 of one request, a view on the device."""
        return self.kv_indices[self.indptr[request] : self.indptr[request + 1]]

    def check(self, kv_lens: Sequence[int], geometry: Geometry) -> None:
        """Pass if the table was staged from these lengths (tokens, host).

        Raises:
            StaleTable: it was not; every request whose pages differ is named.
        """
        held = [end - start for start, end in zip(self.indptr, self.indptr[1:], strict=False)]
        needed = [geometry.pages(length) for length in kv_lens]
        if held != needed:
            wrong = [
                f"request {b}: {h} pages for {n}" for b, (h, n) in enumerate(zip(held, needed, strict=False)) if h != n
            ]
            raise StaleTable(
                f"the flat table holds {len(held)} requests for {len(needed)} lengths ({', '.join(wrong)}); "
                "stage table and lengths from one source"
            )


def flatten_into(
    kv_indices: torch.Tensor, indptr: torch.Tensor, page_table: torch.Tensor, kv_lens: torch.Tensor, page_size: int
) -> None:
    """``kv_indices`` and ``indptr`` hold the flat form of a padded table for these lengths; device only, in place.

    Args:
        kv_indices: [B * W + 1] int32, device; the last entry takes what belongs to no request.
        indptr: [B + 1] int32, device.
        page_table: [B, W] int32, device.
        kv_lens: [B] int32, device, tokens.
        page_size: P.

    Read live: table and lengths. Frozen at capture: B, W and P.
    """
    batch, width = page_table.shape
    counts = pointers_into(indptr, kv_lens, page_size)
    columns = torch.arange(width, device=page_table.device)
    places = indptr.narrow(0, 0, batch).unsqueeze(1) + columns
    places = places.masked_fill(columns >= counts.unsqueeze(1), batch * width)
    kv_indices.index_copy_(0, places.view(-1), page_table.reshape(-1))


def pointers_into(indptr: torch.Tensor, kv_lens: torch.Tensor, page_size: int) -> torch.Tensor:
    """``indptr`` [B + 1] int32 holds the row pointers for ``kv_lens`` [B] int32; returns page counts [B]; device."""
    counts = torch.div(kv_lens + (page_size - 1), page_size, rounding_mode="floor")
    indptr.narrow(0, 0, 1).zero_()
    indptr.narrow(0, 1, indptr.shape[0] - 1).copy_(counts.cumsum(0))
    return counts


def unflatten_into(page_table: torch.Tensor, kv_indices: torch.Tensor, indptr: torch.Tensor) -> None:
    """Row b of ``page_table`` holds request b's pages, then whatever follows them; device only, in place.

    Args:
        page_table: [B, W] int32, device.
        kv_indices: [entries] int32, device.
        indptr: [B + 1] int32, device.
    """
    batch, width = page_table.shape
    places = indptr.narrow(0, 0, batch).unsqueeze(1) + torch.arange(width, device=page_table.device)
    places = places.clamp(max=kv_indices.shape[0] - 1)
    page_table.copy_(kv_indices.index_select(0, places.view(-1)).view(batch, width))
