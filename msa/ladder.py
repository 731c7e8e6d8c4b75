"""The verify ladder: what each query row sees and where its token goes, planned on the device."""

from __future__ import annotations

import torch

from graphcheck.contract import capture_safe, refuse_while_capturing
from msa.geometry import Geometry


class Ladder:
    """Per-row fields of a decode step, all derived from the lengths and the page table.

    Row r = b * Q + t of request b is the token at position kv_lens[b] - Q + t; it sees its own position and all before.

    Attributes:
        qo_offsets: [T] int32, device: position of each row; negative where the request has no such token.
        extents: [T] int32, device: tokens that the row sees, position + 1; zero or less where it has none.
        valid_pages: [T] int32, device: pages that hold them, 0..W.
        slots: [T] int64, device: where the row's key and value go; the dummy slot where it has no token.
        row_requests: [T] int64, device: the row's request; constant.

    Raises:
        CaptureRefused: the current stream is capturing.
    """

    def __init__(self, geometry: Geometry, batch: int, qo_len: int, device: torch.device | str) -> None:
        refuse_while_capturing("ladder")
        rows = batch * qo_len
        self.geometry = geometry
        self.batch = batch
        self.qo_len = qo_len
        self.qo_offsets = torch.zeros(rows, dtype=torch.int32, device=device)
        self.extents = torch.zeros(rows, dtype=torch.int32, device=device)
        self.valid_pages = torch.zeros(rows, dtype=torch.int32, device=device)
        self.slots = torch.full((rows,), geometry.dummy_slot, dtype=torch.int64, device=device)
        row = torch.arange(rows, dtype=torch.int64, device=device)
        self.row_requests = row // qo_len
        self.steps = (row % qo_len - qo_len).to(torch.int32)

    def plan(self, kv_lens: torch.Tensor, page_table: torch.Tensor) -> None:
        """Every field is that of a batch with these lengths; in place, device only, the same bits however often.

        Args:
            kv_lens: [B] int32, device, tokens, the Q new ones included; 0 for padding rows.
            page_table: [B, W] int32, device.

        Read live: lengths and table. Frozen at capture: B, Q, W, P and the number of pages.
        """
        plan_ladder(
            kv_lens,
            page_table,
            self.row_requests,
            self.steps,
            self.qo_offsets,
            self.extents,
            self.valid_pages,
            self.slots,
            self.geometry,
        )


@capture_safe(
    dynamic=("kv_lens", "page_table"),
    static=("row_requests", "steps", "geometry"),
    out=("qo_offsets", "extents", "valid_pages", "slots"),
)
def plan_ladder(
    kv_lens: torch.Tensor,
    page_table: torch.Tensor,
    row_requests: torch.Tensor,
    steps: torch.Tensor,
    qo_offsets: torch.Tensor,
    extents: torch.Tensor,
    valid_pages: torch.Tensor,
    slots: torch.Tensor,
    geometry: Geometry,
) -> None:
    """The row fields of `Ladder` follow from lengths and table; device only.

    Args:
        kv_lens: [B] int32, device, tokens.
        page_table: [B, W] int32, device.
        row_requests: [T] int64, device.
        steps: [T] int32, device: t - Q.
        qo_offsets, extents, valid_pages: [T] int32, device; written.
        slots: [T] int64, device; written.
        geometry: page size, table width and pool.
    """
    page_size, width = geometry.page_size, page_table.shape[1]
    torch.add(kv_lens.index_select(0, row_requests), steps, out=qo_offsets)
    torch.add(qo_offsets, 1, out=extents)
    counts = torch.div(qo_offsets + page_size, page_size, rounding_mode="floor")
    torch.clamp(counts, 0, width, out=valid_pages)
    column = torch.div(qo_offsets, page_size, rounding_mode="floor")
    place = row_requests * width + column.clamp(0, width - 1)
    page = page_table.reshape(-1).index_select(0, place).to(torch.int64)
    # No token, a token behind the table, or a page outside the pool: the write goes where nobody reads.
    lost = (column < 0) | (column >= width) | (page < 0) | (page >= geometry.num_pages)
    slot = page * page_size + torch.remainder(qo_offsets, page_size)
    slots.copy_(slot.masked_fill_(lost, geometry.dummy_slot))
