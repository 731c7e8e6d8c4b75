"""Reports of padding rows and absent inputs that reach live rows or live slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from graphcheck.cases import Case
from graphcheck.component import Buffers
from graphcheck.strategies import batch, case, contents, integers, lengths
from graphcheck.zoo import Entry
from graphcheck.zoo.reports.attention import CAPACITY, EXACT_VALUES, PAGE, B, DecodeAttention

PAGES = 3
SLOTS = PAGES * PAGE
OWN_SLOTS = 2


class LeavesOffsets(DecodeAttention):
    """Lengths are corrected by what the previous step accepted; nobody resets the correction for dummy requests."""

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(
            **dict(super().allocate(device).items()), offsets=torch.zeros(B, dtype=torch.int32, device=device)
        )

    def cases(self) -> SearchStrategy[Case]:
        return case(
            kv_lens=lengths(B, 3, CAPACITY, page=PAGE),
            tokens=contents(EXACT_VALUES),
            dummy=st.booleans(),
            rejected=lengths(B, 0, 2),
        )

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        if not case.dummy:
            buffers.offsets.copy_(-case.rejected)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.weighted(buffers, buffers.kv_lens + buffers.offsets).sum(1))
        return {"out": buffers.out}


class ZeroesOffsets(LeavesOffsets):
    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        if case.dummy:
            buffers.offsets.zero_()


class WritesSlotMinusOne(DecodeAttention):
    """Hidden states are written to page ``slot // P``, offset ``slot % P``: -1 is the last slot of the last page."""

    mutates = ("cache",)

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(
            **dict(super().allocate(device).items()),
            cache=torch.zeros(self.pages(), PAGE, device=device),
            slot_mapping=torch.zeros(B, dtype=torch.int64, device=device),
        )

    def pages(self) -> int:
        """Pages of the cache."""
        return PAGES

    def cases(self) -> SearchStrategy[Case]:
        return case(
            kv_lens=lengths(B, 1, CAPACITY, page=PAGE),
            tokens=contents(EXACT_VALUES),
            size=batch(B),
            order=st.permutations(range(SLOTS)),
        )

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        # All padding rows compute one value, so that it does not matter which of them writes a slot last.
        buffers.q[case.size :].fill_(1)
        buffers.kv[:, case.size :].fill_(1)
        buffers.kv_lens[case.size :].fill_(PAGE)
        buffers.slot_mapping.fill_(-1)
        buffers.slot_mapping[: case.size].copy_(torch.tensor(case.order[: case.size]))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        outputs = super().run(buffers)
        slots = self.addressed(buffers)
        pages = slots.div(PAGE, rounding_mode="floor")
        buffers.cache.index_put_((pages, slots.remainder(PAGE)), buffers.out)
        return outputs

    def addressed(self, buffers: Buffers) -> torch.Tensor:
        """The slot that each row writes, int64 [B], device."""
        return buffers.slot_mapping

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        outputs = super().run(buffers)
        live = torch.tensor(case.order[: case.size], device=buffers.q.device)
        buffers.cache.view(-1).index_copy_(0, live, buffers.out[: case.size])
        return outputs

    def written(self, buffers: Buffers, case: Case) -> Mapping[str, Any]:
        live = torch.zeros(self.pages() * PAGE, dtype=torch.bool)
        live[list(case.order[: case.size])] = True
        return {"cache": live.view(-1, PAGE).to(buffers.cache.device)}


class SkipsSlotMinusOne(WritesSlotMinusOne):
    """Negative slots go to a page of their own, which is scratch."""

    scratch = ("spill",)

    def pages(self) -> int:
        return PAGES + 1

    def allocate(self, device: torch.device) -> Buffers:
        buffers = super().allocate(device)
        return Buffers(**dict(buffers.items()), spill=buffers.cache[PAGES:])

    def addressed(self, buffers: Buffers) -> torch.Tensor:
        return torch.where(buffers.slot_mapping < 0, SLOTS, buffers.slot_mapping)

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        return self.run(buffers)


class PadsWithEmptyRows(DecodeAttention):
    """Padding rows have no keys, so their softmax is NaN, and one quantisation scale spans the whole tile of rows."""

    pad_len = 0

    def cases(self) -> SearchStrategy[Case]:
        return case(kv_lens=lengths(B, 1, CAPACITY, page=PAGE), tokens=contents(EXACT_VALUES), size=batch(B))

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        buffers.kv_lens[case.size :].fill_(self.pad_len)
        buffers.kv[:, case.size :].zero_()

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        return self.quantised(buffers, B)

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        return self.quantised(buffers, case.size)

    def quantised(self, buffers: Buffers, size: int) -> Mapping[str, torch.Tensor]:
        """The first ``size`` rows in units of the largest of them."""
        # A mean over the keys stands for the softmax: nothing divided by nothing, and exact otherwise.
        attended = (self.weighted(buffers, buffers.kv_lens).sum(1) / buffers.kv_lens)[:size]
        buffers.out[:size].copy_(attended / attended.abs().amax().clamp(min=1))
        return {"out": buffers.out[:size]}


class PadsWithOneKey(PadsWithEmptyRows):
    pad_len = 1


class ScattersStaleTail(DecodeAttention):
    """Recurrent state is scattered through slot indices of the whole bucket; the refresh writes the live rows' only.

    The slots of requests that are parked outside the batch are still in the tail. Each row draws from slots of its own,
    so that no slot is written twice.
    """

    mutates = ("state",)
    scratch = ("reserved",)

    def allocate(self, device: torch.device) -> Buffers:
        state = torch.zeros(B * OWN_SLOTS + B, device=device)
        return Buffers(
            **dict(super().allocate(device).items()),
            state=state,
            reserved=state[B * OWN_SLOTS :],
            state_indices=torch.arange(B * OWN_SLOTS, B * OWN_SLOTS + B, device=device),
        )

    def cases(self) -> SearchStrategy[Case]:
        return case(
            kv_lens=lengths(B, 1, CAPACITY, page=PAGE),
            tokens=contents(EXACT_VALUES),
            size=batch(B),
            slots=st.lists(st.integers(0, OWN_SLOTS - 1), min_size=B, max_size=B),
        )

    def live(self, case: Case) -> torch.Tensor:
        """Slots of the requests in the batch, int64 [size], host."""
        return (torch.arange(B) * OWN_SLOTS + torch.tensor(case.slots))[: case.size]

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        buffers.state_indices[: case.size].copy_(self.live(case))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        update = self.weighted(buffers, buffers.kv_lens).sum(1)
        kept = buffers.state.index_select(0, buffers.state_indices) * 0.5
        buffers.state.index_copy_(0, buffers.state_indices, kept + update)
        buffers.out.copy_(update)
        return {"out": buffers.out}

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        update = self.weighted(buffers, buffers.kv_lens).sum(1)
        live = self.live(case).to(buffers.q.device)
        buffers.state.index_copy_(0, live, buffers.state.index_select(0, live) * 0.5 + update[: case.size])
        buffers.out.copy_(update)
        return {"out": buffers.out}

    def written(self, buffers: Buffers, case: Case) -> Mapping[str, Any]:
        live = torch.zeros(buffers.state.numel(), dtype=torch.bool)
        live[self.live(case)] = True
        return {"state": live.to(buffers.state.device)}


class FillsReservedTail(ScattersStaleTail):
    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        first = B * OWN_SLOTS
        buffers.state_indices[case.size :].copy_(torch.arange(first + case.size, first + B))


class KeepsPositionSlots(DecodeAttention):
    """Slots of multimodal position offsets are copied when a request brings them; text requests keep the last ones."""

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(
            **dict(super().allocate(device).items()),
            mrope_deltas=torch.arange(B + 1, dtype=torch.float32, device=device),
            mrope_slots=torch.zeros(B, dtype=torch.int64, device=device),
        )

    def cases(self) -> SearchStrategy[Case]:
        return case(
            kv_lens=lengths(B, 1, CAPACITY, page=PAGE),
            tokens=contents(EXACT_VALUES),
            multimodal=st.booleans(),
            first=integers(1, B),
        )

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        if case.multimodal:
            buffers.mrope_slots.copy_((torch.arange(B) + case.first) % B + 1)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        positions = buffers.mrope_deltas.index_select(0, buffers.mrope_slots) + buffers.kv_lens
        buffers.out.copy_(self.weighted(buffers, buffers.kv_lens).sum(1) + positions)
        return {"out": buffers.out}


class FillsDummySlot(KeepsPositionSlots):
    def stage(self, buffers: Buffers, case: Case) -> None:
        buffers.mrope_slots.zero_()
        super().stage(buffers, case)


ZOO = [
    Entry(
        "GC705",
        "b017-offsets-of-dummy-requests-unset",
        LeavesOffsets,
        ZeroesOffsets,
        "length corrections of the previous step stay for requests that had none",
    ),
    Entry(
        "GC703",
        "b055-slot-minus-one-is-the-last-slot",
        WritesSlotMinusOne,
        SkipsSlotMinusOne,
        "a cache write by pure indexing takes the padding slot for the last one",
    ),
    Entry(
        "GC702",
        "b059-state-scattered-through-stale-tail",
        ScattersStaleTail,
        FillsReservedTail,
        "the tail of the slot indices is an earlier batch's, and its requests are parked",
    ),
    Entry(
        "GC705",
        "b061-position-slots-not-reset",
        KeepsPositionSlots,
        FillsDummySlot,
        "an absent position input keeps the previous request's slots",
    ),
    Entry(
        "GC704",
        "b057-empty-padding-rows-give-nan",
        PadsWithEmptyRows,
        PadsWithOneKey,
        "padding rows without keys give NaN, and a shared scale carries it to live rows",
    ),
]
