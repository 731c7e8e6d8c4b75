"""The step's lengths and everything that follows from them, as one kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from msa.geometry import Geometry
from msa.ops.triton.launch import launch_options, opaque
from msa.ops.triton.tile import dependency_wait

BLOCK = 128


@triton.jit(
    do_not_specialize=[
        "kv_lens",
        "staged",
        "accepted",
        "page_table",
        "qo_offsets",
        "extents",
        "valid_pages",
        "slots",
        "batch",
        "width",
        "num_pages",
    ]
)
def _plan(
    kv_lens,
    staged,
    accepted,
    page_table,
    qo_offsets,
    extents,
    valid_pages,
    slots,
    batch,
    width,
    num_pages,
    Q: tl.constexpr,
    P: tl.constexpr,
    SHIFT: tl.constexpr,
    CORRECT: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    dependency_wait(PDL)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = row < batch * Q
    request = row // Q
    if CORRECT:
        # Every row computes its length from what was staged: none reads what another program writes.
        length = tl.load(staged + request, mask=real, other=0)
        rejected = tl.maximum(Q - tl.load(accepted + request, mask=real, other=Q), 0)
        length = tl.maximum(length - rejected, 0)
        tl.store(kv_lens + request, length, mask=real & (row % Q == 0))
    else:
        length = tl.load(kv_lens + request, mask=real, other=0)
    position = length - Q + row % Q
    # Shifts and masks round towards minus infinity, division would round towards zero.
    column = position >> SHIFT
    valid = tl.minimum(tl.maximum((position + P) >> SHIFT, 0), width)
    inside = (column >= 0) & (column < width)
    page = tl.load(page_table + request.to(tl.int64) * width + column, mask=real & inside, other=-1)
    lost = (page < 0) | (page >= num_pages)
    slot = tl.where(lost, num_pages, page).to(tl.int64) * P + tl.where(lost, 0, position & (P - 1))
    tl.store(qo_offsets + row, position, mask=real)
    tl.store(extents + row, position + 1, mask=real)
    tl.store(valid_pages + row, valid, mask=real)
    tl.store(slots + row, slot, mask=real)


def _launch(
    kv_lens: torch.Tensor,
    staged: torch.Tensor,
    accepted: torch.Tensor,
    page_table: torch.Tensor,
    qo_offsets: torch.Tensor,
    extents: torch.Tensor,
    valid_pages: torch.Tensor,
    slots: torch.Tensor,
    page_size: int,
    num_pages: int,
    correct: bool,
    pdl: bool,
) -> None:
    batch, width = page_table.shape
    rows = qo_offsets.shape[0]
    _plan[(-(-rows // BLOCK),)](
        kv_lens,
        staged,
        accepted,
        page_table,
        qo_offsets,
        extents,
        valid_pages,
        slots,
        batch,
        width,
        num_pages,
        Q=rows // batch,
        P=page_size,
        SHIFT=page_size.bit_length() - 1,
        CORRECT=correct,
        BLOCK=BLOCK,
        PDL=pdl,
        **launch_options(4, pdl),
    )


def _plan_ladder(
    kv_lens: torch.Tensor,
    page_table: torch.Tensor,
    qo_offsets: torch.Tensor,
    extents: torch.Tensor,
    valid_pages: torch.Tensor,
    slots: torch.Tensor,
    page_size: int,
    num_pages: int,
    pdl: bool,
) -> None:
    fields = (qo_offsets, extents, valid_pages, slots)
    _launch(kv_lens, kv_lens, kv_lens, page_table, *fields, page_size, num_pages, False, pdl)


def _correct_and_plan(
    kv_lens: torch.Tensor,
    staged: torch.Tensor,
    accepted: torch.Tensor,
    page_table: torch.Tensor,
    qo_offsets: torch.Tensor,
    extents: torch.Tensor,
    valid_pages: torch.Tensor,
    slots: torch.Tensor,
    page_size: int,
    num_pages: int,
    pdl: bool,
) -> None:
    fields = (qo_offsets, extents, valid_pages, slots)
    _launch(kv_lens, staged, accepted, page_table, *fields, page_size, num_pages, True, pdl)


_FIELDS = (
    "Tensor page_table, Tensor(b!) qo_offsets, Tensor(c!) extents, Tensor(d!) valid_pages, Tensor(e!) slots, "
    "int page_size, int num_pages, bool pdl) -> ()"
)
_planned = opaque(f"plan_ladder(Tensor kv_lens, {_FIELDS}", _plan_ladder)
_corrected = opaque(
    f"correct_and_plan(Tensor(a!) kv_lens, Tensor staged, Tensor accepted, {_FIELDS}", _correct_and_plan
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
    *,
    pdl: bool = False,
) -> None:
    """The row fields of `msa.ladder.Ladder` follow from lengths and table. One launch, grid (ceil(T / 128)).

    Args:
        kv_lens: [B] int32, device, tokens.
        page_table: [B, W] int32, device, contiguous; entries that no row needs may hold anything.
        row_requests, steps: of the portable function; not read, they follow from T and B.
        qo_offsets, extents, valid_pages: [T] int32, device; written.
        slots: [T] int64, device; written.
        geometry: page size and pool.
        pdl: launch as a programmatic dependent of the kernel before.

    Read live: lengths and table. Frozen at capture: B, Q, W, P and the number of pages.
    """
    _planned(kv_lens, page_table, qo_offsets, extents, valid_pages, slots, geometry.page_size, geometry.num_pages, pdl)


def correct_and_plan(
    kv_lens: torch.Tensor,
    staged: torch.Tensor,
    accepted: torch.Tensor,
    page_table: torch.Tensor,
    qo_offsets: torch.Tensor,
    extents: torch.Tensor,
    valid_pages: torch.Tensor,
    slots: torch.Tensor,
    geometry: Geometry,
    *,
    pdl: bool = False,
) -> None:
    """``kv_lens`` is what `msa.overlap.correct_lengths` says, and the row fields follow from it, in one launch.

    ``staged`` stays as it is, so doing this twice gives the same bits as doing it once.

    Args:
        kv_lens: [B] int32, device, tokens; written. Must not overlap ``staged``.
        staged: [B] int32, device, tokens: lengths as if every draft had been accepted.
        accepted: [B] int32, device, tokens: what the previous step kept.
        page_table, qo_offsets, extents, valid_pages, slots, geometry, pdl: as in `plan_ladder`.

    Read live: staged lengths, accepted counts and the table. Frozen at capture: B, Q, W, P and the number of pages.
    """
    _corrected(
        kv_lens,
        staged,
        accepted,
        page_table,
        qo_offsets,
        extents,
        valid_pages,
        slots,
        geometry.page_size,
        geometry.num_pages,
        pdl,
    )
