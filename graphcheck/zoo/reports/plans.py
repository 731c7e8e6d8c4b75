"""Reports of plans, splits and scheduler metadata that were made on the host or for another batch."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from hypothesis.strategies import SearchStrategy

from graphcheck.cases import Case
from graphcheck.component import Buffers
from graphcheck.strategies import case, contents, integers, lengths
from graphcheck.zoo import Entry
from graphcheck.zoo.reports.attention import CAPACITY, EXACT_VALUES, PAGE, B, DecodeAttention
from graphcheck.zoo.reports.entry import Undetected

TILES = B * CAPACITY // PAGE


def tile_table(kv_lens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Request and first key of each tile of ``PAGE`` keys, int64 [tiles], host. ``kv_lens`` [B], host."""
    counts = -(-kv_lens.long() // PAGE)
    requests = torch.repeat_interleave(torch.arange(B), counts)
    first = torch.cat([torch.arange(int(count)) * PAGE for count in counts])
    return requests, first


class PlansAtCapture(DecodeAttention):
    """A host planner writes request and first key of each tile; only the capture calls it."""

    planned = False

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(
            **dict(super().allocate(device).items()),
            request_indices=torch.full((TILES,), B, dtype=torch.int64, device=device),
            kv_tile_starts=torch.zeros(TILES, dtype=torch.int64, device=device),
            in_tile=torch.arange(PAGE, device=device),
            requests=torch.arange(B, device=device),
        )

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.prepare_replay(buffers, case.kv_lens)

    def prepare_replay(self, buffers: Buffers, kv_lens: torch.Tensor) -> None:
        """Everything that happens before a replay beyond copying the inputs. ``kv_lens`` [B], host."""
        if not self.planned:
            self.plan(buffers, kv_lens)
            self.planned = True

    def plan(self, buffers: Buffers, kv_lens: torch.Tensor) -> None:
        """Write the tile table; tiles that the batch does not need carry request ``B``, which no request is."""
        requests, first = tile_table(kv_lens)
        unused = (0, TILES - requests.numel())
        buffers.request_indices.copy_(torch.nn.functional.pad(requests, unused, value=B))
        buffers.kv_tile_starts.copy_(torch.nn.functional.pad(first, unused))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        columns = buffers.kv_tile_starts.unsqueeze(1) + buffers.in_tile
        index = (buffers.request_indices.clamp(max=B - 1).unsqueeze(1) * CAPACITY + columns).reshape(-1)
        tiles = self.weighted(buffers, buffers.kv_lens).view(-1).index_select(0, index).view(TILES, PAGE).sum(1)
        of_request = buffers.request_indices == buffers.requests.unsqueeze(1)
        buffers.out.copy_(torch.where(of_request, tiles, 0.0).sum(1))
        return {"out": buffers.out}

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        return DecodeAttention.run(self, buffers)


class PlansBeforeReplay(PlansAtCapture):
    def prepare_replay(self, buffers: Buffers, kv_lens: torch.Tensor) -> None:
        self.plan(buffers, kv_lens)


class FollowsUnwrittenTiles(PlansAtCapture):
    """Without split-KV the planner writes one entry a real tile, and the padded grid follows all of them."""

    def allocate(self, device: torch.device) -> Buffers:
        buffers = super().allocate(device)
        buffers.request_indices = torch.empty(TILES, dtype=torch.int64, device=device)
        buffers.kv_tile_starts = torch.empty(TILES, dtype=torch.int64, device=device)
        return buffers

    def prepare_replay(self, buffers: Buffers, kv_lens: torch.Tensor) -> None:
        requests, first = tile_table(kv_lens)
        buffers.request_indices[: requests.numel()].copy_(requests)
        buffers.kv_tile_starts[: first.numel()].copy_(first)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        # The remainders stand for an address that is mapped: a wrong tile instead of a fault.
        first = buffers.kv_tile_starts.remainder(CAPACITY - PAGE + 1)
        request = buffers.request_indices.remainder(B)
        index = (request.unsqueeze(1) * CAPACITY + first.unsqueeze(1) + buffers.in_tile).reshape(-1)
        tiles = self.weighted(buffers, buffers.kv_lens).view(-1).index_select(0, index).view(TILES, PAGE).sum(1)
        tiles = torch.where(self.launched(buffers), tiles, 0.0)
        of_request = request == buffers.requests.unsqueeze(1)
        buffers.out.copy_(torch.where(of_request, tiles, 0.0).sum(1))
        return {"out": buffers.out}

    def launched(self, buffers: Buffers) -> torch.Tensor:
        """Which entries of the table have a block that follows them, bool [TILES], device."""
        return buffers.request_indices == buffers.request_indices


class LaunchesRealTiles(FollowsUnwrittenTiles):
    def launched(self, buffers: Buffers) -> torch.Tensor:
        tiles = (buffers.kv_lens + PAGE - 1).div(PAGE, rounding_mode="floor").sum()
        return torch.arange(TILES, device=buffers.q.device) < tiles


class SplitsByHeuristic(DecodeAttention):
    """The number of KV splits, and with it the partial results, follow from the lengths at capture."""

    num_splits = CAPACITY // PAGE

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.num_splits = self.schedule(case)

    def schedule(self, case: Case) -> int:
        """KV splits of the batch."""
        return -(-int(case.kv_lens.max()) // PAGE)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        splits = self.weighted(buffers, buffers.kv_lens)[:, : self.num_splits * PAGE].view(B, self.num_splits, PAGE)
        partials = splits.sum(2)
        buffers.out.copy_(partials.sum(1))
        return {"out": buffers.out}


class SplitsByBound(SplitsByHeuristic):
    def schedule(self, case: Case) -> int:
        return CAPACITY // PAGE


class SchedulesLazily(DecodeAttention):
    """Scheduler metadata starts empty at each step; the warm-up builds it, so the capture skips the planner."""

    scratch = ("bounds",)
    scheduled = False

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(
            **dict(super().allocate(device).items()), bounds=torch.empty(B, dtype=torch.int32, device=device)
        )

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.scheduled = False

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        if not self.scheduled:
            self.schedule(buffers)
            self.scheduled = True
        ends = buffers.bounds
        starts = torch.nn.functional.pad(ends[:-1], (1, 0))
        buffers.out.copy_(self.weighted(buffers, ends - starts).sum(1))
        return {"out": buffers.out}

    def schedule(self, buffers: Buffers) -> None:
        """The planner's kernel: where the work of each request ends."""
        torch.cumsum(buffers.kv_lens, 0, dtype=torch.int32, out=buffers.bounds)


class SchedulesEachStep(SchedulesLazily):
    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        outputs = super().run(buffers)
        self.scheduled = False
        return outputs


@dataclass
class SamplingMetadata:
    """How the sampler treats the batch."""

    force_sampling: bool = False


class KeepsForcedSampling(DecodeAttention):
    """Warm-up forces sampling with dummy parameters; the copy of the metadata that was cached then keeps the flag."""

    def allocate(self, device: torch.device) -> Buffers:
        self.live = SamplingMetadata()
        self.cached: SamplingMetadata | None = None
        return Buffers(**dict(super().allocate(device).items()), temperature=torch.ones((), device=device))

    def cases(self) -> SearchStrategy[Case]:
        return case(
            kv_lens=lengths(B, 1, CAPACITY, page=PAGE), tokens=contents(EXACT_VALUES), temperature=integers(2, 9)
        )

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        buffers.temperature.fill_(float(case.temperature))

    @contextmanager
    def around_warmup(self, buffers: Buffers) -> Iterator[None]:
        self.live.force_sampling = True
        self.cached = copy.copy(self.live)
        try:
            yield
        finally:
            self.live.force_sampling = False
            self.clear(self.cached)

    def clear(self, cached: SamplingMetadata) -> None:
        """Take back what the warm-up forced on the cached copy."""

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        metadata = self.cached if self.cached is not None else self.live
        logits = self.weighted(buffers, buffers.kv_lens).sum(1)
        buffers.out.copy_(logits if metadata.force_sampling else logits * buffers.temperature)
        return {"out": buffers.out}


class ClearsForcedSampling(KeepsForcedSampling):
    def clear(self, cached: SamplingMetadata) -> None:
        cached.force_sampling = False


@dataclass(frozen=True)
class TensorMap:
    """The host's description of one operand: the extents that the kernel trusts."""

    rows: int


class EncodesRows(DecodeAttention):
    """Grouped product whose host-built tensor map holds the rows of the batch at capture."""

    operand = TensorMap(B)

    def cases(self) -> SearchStrategy[Case]:
        return case(rows=integers(1, B), tokens=contents(EXACT_VALUES))

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(
            **dict(super().allocate(device).items()),
            live=torch.zeros((), dtype=torch.int64, device=device),
            row=torch.arange(B, device=device),
        )

    def stage(self, buffers: Buffers, case: Case) -> None:
        self.stage_tokens(buffers, case)
        buffers.live.fill_(case.rows)
        self.operand = TensorMap(case.rows)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        rows = (buffers.q.unsqueeze(1) * buffers.kv[0]).sum(1)
        buffers.out.copy_(torch.where(self.inside(buffers), rows, 0.0))
        return {"out": buffers.out}

    def inside(self, buffers: Buffers) -> torch.Tensor:
        """Rows that lie inside the operand, bool [B], device."""
        return buffers.row < self.operand.rows


class ReadsRows(EncodesRows):
    def inside(self, buffers: Buffers) -> torch.Tensor:
        return buffers.row < buffers.live

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.operand = TensorMap(B)


ZOO = [
    Entry(
        "GC305",
        "b009-planner-not-called-before-replay",
        PlansAtCapture,
        PlansBeforeReplay,
        "the planner's tile table is that of the capture",
    ),
    Entry(
        "GC602",
        "b015-scheduler-metadata-built-in-warm-up",
        SchedulesLazily,
        SchedulesEachStep,
        "the warm-up fills lazy metadata, so the planner never enters the graph",
    ),
]
UNDETECTED = [
    Undetected(
        Entry(
            "GC304",
            "b007-more-splits-than-captured",
            SplitsByHeuristic,
            SplitsByBound,
            "the split count and the partial results are those of the lengths at capture",
        ),
        "GC302 leads: needs a detector that knows a baked extent for a split count of partial results.",
    ),
    Undetected(
        Entry(
            "GC304",
            "b011-padded-grid-follows-unwritten-tiles",
            FollowsUnwrittenTiles,
            LaunchesRealTiles,
            "the planner writes an entry a real tile, the graph launches a padded grid",
        ),
        "GC702 leads, with the table's tail: needs a detector that compares the launched grid with the planned one.",
    ),
    Undetected(
        Entry(
            "GC306",
            "b087-tensor-map-frozen-at-capture",
            EncodesRows,
            ReadsRows,
            "a host-built descriptor holds the rows of the batch at capture",
        ),
        "GC301 leads: needs a detector that knows a baked number for a field of a descriptor.",
    ),
    Undetected(
        Entry(
            "GC310",
            "b039-forced-sampling-survives-capture",
            KeepsForcedSampling,
            ClearsForcedSampling,
            "a flag forced for warm-up stays on a cached copy",
        ),
        "GC602 leads: needs a comparison of host flags before warm-up and at capture.",
    ),
]
