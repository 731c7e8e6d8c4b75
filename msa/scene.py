"""A scene: one batch on the host, and what of the caches, tables and rows is alive in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from msa.geometry import Geometry
from msa.paging import FlatTable, check_lengths, pad_rows


@dataclass(frozen=True)
class Scene:
    """The true state of a decode batch inside a bucket.

    Args:
        geometry: sizes.
        batch: requests in the bucket.
        qo_len: Q.
        kv_lens: length of each real request, tokens, the Q new ones included.
        rows: physical pages of each real request.

    Raises:
        BatchTooLarge, LengthTooLarge: the batch does not fit.
    """

    geometry: Geometry
    batch: int
    qo_len: int
    kv_lens: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        check_lengths(self.kv_lens, self.geometry, self.batch)

    @staticmethod
    def build(
        geometry: Geometry,
        batch: int,
        qo_len: int,
        kv_lens: Sequence[int],
        own: Sequence[Sequence[int]],
        shared_pages: int = 0,
    ) -> Scene:
        """A scene in which requests share a prefix as far as nobody writes it.

        Args:
            own: physical pages of each request, all different.
            shared_pages: leading pages that every request takes from the first one, where both have filled them.
        """
        full = [max(length - qo_len, 0) // geometry.page_size for length in kv_lens]
        rows = []
        for request, pages in enumerate(own[: len(kv_lens)]):
            common = min(shared_pages, full[0], full[request])
            rows.append((*own[0][:common], *pages[common:]))
        return Scene(geometry, batch, qo_len, tuple(kv_lens), tuple(rows))

    @property
    def real_rows(self) -> int:
        """Query rows of the real requests."""
        return len(self.kv_lens) * self.qo_len

    def position(self, row: int) -> int:
        """Position of a real row; negative if it has no token."""
        request, token = divmod(row, self.qo_len)
        return self.kv_lens[request] - self.qo_len + token

    def extents(self) -> list[int]:
        """Tokens that each row of the bucket sees, zero for rows without a token."""
        live = [max(self.position(row) + 1, 0) for row in range(self.real_rows)]
        return live + [0] * (self.batch * self.qo_len - self.real_rows)

    def valid_pages(self) -> torch.Tensor:
        """Valid pages of each row of the bucket, int64 [T], host."""
        return torch.tensor([self.geometry.pages(extent) for extent in self.extents()])

    def slot(self, request: int, position: int) -> tuple[int, int]:
        """Page and offset of a position of a request."""
        column, offset = divmod(position, self.geometry.page_size)
        return self.rows[request][column], offset

    def padded(self, lengths: Sequence[int] | None = None) -> torch.Tensor:
        """The page table int32 [B, W], host, with every entry that no request needs set to something unusable.

        Args:
            lengths: lengths that the table must cover, tokens; ``kv_lens`` by default.
        """
        lengths = self.kv_lens if lengths is None else lengths
        table = pad_rows(self.rows, lengths, self.geometry, self.batch)
        pages = self.geometry.num_pages
        trash = torch.tensor([-1, pages, pages + 5, 2**31 - 1, -(2**31), -7], dtype=torch.int32)
        trash = trash.repeat(table.numel() // len(trash) + 1)[: table.numel()].view(table.shape)
        needed = torch.zeros(table.shape, dtype=torch.bool)
        for request, length in enumerate(lengths):
            needed[request, : self.geometry.pages(length)] = True
        return torch.where(needed, table, trash)

    def flat(self, device: torch.device | str) -> FlatTable:
        """The flat page table of the true lengths."""
        return FlatTable.stage(self.rows, self.kv_lens, self.geometry, device)

    def alive(self, history_only: bool) -> torch.Tensor:
        """Slots that hold tokens before the step, bool [pages + 1, 1, P, 1], host.

        Args:
            history_only: leave out the Q newest tokens, which the step itself writes.
        """
        mask = torch.zeros(self.geometry.num_pages + 1, self.geometry.page_size, dtype=torch.bool)
        for request, length in enumerate(self.kv_lens):
            count = max(length - self.qo_len, 0) if history_only else length
            full, rest = divmod(count, self.geometry.page_size)
            mask[list(self.rows[request][:full])] = True
            if rest:
                mask[self.rows[request][full], :rest] = True
        return mask[:, None, :, None]

    def fresh(self) -> torch.Tensor:
        """Slots that the step writes, bool [pages + 1, 1, P, 1], host."""
        mask = torch.zeros(self.geometry.num_pages + 1, self.geometry.page_size, dtype=torch.bool)
        for row in range(self.real_rows):
            if self.position(row) >= 0:
                mask[self.slot(row // self.qo_len, self.position(row))] = True
        return mask[:, None, :, None]

    def visible_scores(self) -> torch.Tensor:
        """Score columns that belong to valid pages, bool [1, T, W], host."""
        return (torch.arange(self.geometry.max_pages) < self.valid_pages()[:, None]).unsqueeze(0)
