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
from graphcheck.zoo.reports.attention import CAPACITY, EXACT_VALUES, PAGE, B, DecodeAttention, columns, products

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
    """The kernels and their partial results are those of the split count at capture, the schedule that of the batch."""

    scratch = ("partials",)
    captured_splits = CAPACITY // PAGE

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(
            **dict(super().allocate(device).items()),
            num_splits=torch.ones((), dtype=torch.int64, device=device),
            partials=torch.empty(CAPACITY // PAGE, B, device=device),
        )

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        splits = self.bounded(-(-int(case.kv_lens.max()) // PAGE))
        self.captured_splits = splits
        buffers.num_splits.fill_(splits)

    def bounded(self, splits: int) -> int:
        """KV splits of a batch for which the heuristic wants ``splits``."""
        return splits

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        weighted = self.weighted(buffers, buffers.kv_lens)
        chunk = (buffers.num_splits + CAPACITY - 1) // buffers.num_splits
        split_of_key = columns(buffers.q.device) // chunk
        # One split writes the result itself; more of them leave partial results for a second kernel.
        if self.captured_splits == 1:
            buffers.out.copy_(torch.where(split_of_key == 0, weighted, 0.0).sum(1))
            return {"out": buffers.out}
        for split in range(self.captured_splits):
            buffers.partials[split].copy_(torch.where(split_of_key == split, weighted, 0.0).sum(1))
        torch.sum(buffers.partials[: self.captured_splits], 0, out=buffers.out)
        return {"out": buffers.out}


class SplitsByBound(SplitsByHeuristic):
    def bounded(self, splits: int) -> int:
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


class EncodesRows(DecodeAttention):
    """Grouped product over the rows that a host-built tensor map spans; the map is built for the capture."""

    built = False

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(
            **dict(super().allocate(device).items()),
            tensor_map=torch.zeros(2, dtype=torch.int64, device=device),
            row=torch.arange(B, device=device),
        )

    def cases(self) -> SearchStrategy[Case]:
        return case(rows=integers(1, B), tokens=contents(EXACT_VALUES))

    def stage(self, buffers: Buffers, case: Case) -> None:
        self.stage_tokens(buffers, case)
        self.describe(buffers, case.rows)

    def describe(self, buffers: Buffers, rows: int) -> None:
        """The launcher: build the map for ``rows`` rows if it has none yet."""
        if not self.built:
            self.encode(buffers, rows)
            self.built = True

    def encode(self, buffers: Buffers, rows: int) -> None:
        """Write the addresses of the operand's first and last row."""
        keys = buffers.kv[0]
        buffers.tensor_map.copy_(torch.tensor([keys[0].data_ptr(), keys[rows - 1].data_ptr()]))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        pitch = buffers.kv.stride(1) * buffers.kv.element_size()
        last = (buffers.tensor_map[1] - buffers.tensor_map[0]) // pitch
        rows = products(buffers).sum(1)
        buffers.out.copy_(torch.where(buffers.row <= last, rows, 0.0))
        return {"out": buffers.out}


class EncodesEachBatch(EncodesRows):
    def describe(self, buffers: Buffers, rows: int) -> None:
        self.encode(buffers, rows)


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
    Entry(
        "GC304",
        "b007-more-splits-than-captured",
        SplitsByHeuristic,
        SplitsByBound,
        "kernels and partial results are those of the split count at capture",
    ),
    Entry(
        "GC306",
        "b087-tensor-map-frozen-at-capture",
        EncodesRows,
        EncodesEachBatch,
        "a host-built descriptor holds the rows of the batch at capture",
    ),
    Entry(
        "GC310",
        "b039-forced-sampling-survives-capture",
        KeepsForcedSampling,
        ClearsForcedSampling,
        "a flag forced for warm-up stays on a cached copy",
    ),
    Entry(
        "GC704",
        "b011-padded-grid-follows-unwritten-tiles",
        FollowsUnwrittenTiles,
        LaunchesRealTiles,
        "the planner writes an entry a real tile, the graph launches a padded grid",
    ),
]
