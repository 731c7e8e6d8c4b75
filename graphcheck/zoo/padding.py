"""Padding rows of a bucket: stale tails, valid sentinels, unwritten memory, omitted inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from graphcheck.cases import Case
from graphcheck.component import Buffers
from graphcheck.errors import CaseRefused
from graphcheck.finding import Severity
from graphcheck.strategies import batch, case, contents, lengths
from graphcheck.zoo import Entry
from graphcheck.zoo.rows import ROWS, WIDTH, WithoutReference

SLOTS = 6


class StaleTail(WithoutReference):
    """The refresh writes the rows of the batch at hand; the rows behind keep the previous batch's."""

    def allocate(self, device: torch.device) -> Buffers:
        buffers = super().allocate(device)
        buffers.lens.zero_()
        return buffers

    def cases(self) -> SearchStrategy[Case]:
        return case(lens=lengths(ROWS, 1, WIDTH, page=8), x=contents(("normal",)), size=batch(ROWS))

    def stage(self, buffers: Buffers, case: Case) -> None:
        case.x.fill(buffers.x)
        buffers.lens[: case.size].copy_(case.lens[: case.size])

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.masked(buffers).sum(1).sum().expand(buffers.out.shape))
        return {"out": buffers.out}


class FilledTail(StaleTail):
    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        buffers.lens[case.size :].zero_()


class ValidSentinel(WithoutReference):
    """Padding rows carry slot -1, which indexing takes for the last slot."""

    mutates = ("cache",)

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(
            **dict(super().allocate(device).items()),
            cache=torch.zeros(SLOTS, device=device),
            slots=torch.zeros(ROWS, dtype=torch.int64, device=device),
        )

    def cases(self) -> SearchStrategy[Case]:
        return case(
            lens=lengths(ROWS, 1, WIDTH, page=8),
            x=contents(("normal",)),
            size=batch(ROWS),
            order=st.permutations(range(SLOTS)),
        )

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        slots = torch.full((ROWS,), -1, dtype=torch.int64)
        slots[: case.size] = torch.tensor(case.order[: case.size])
        buffers.slots.copy_(slots)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.masked(buffers).sum(1))
        buffers.cache.index_put_((buffers.slots,), buffers.out)
        return {"out": buffers.out}

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.masked(buffers).sum(1))
        live = torch.tensor(case.order[: case.size], device=buffers.x.device)
        buffers.cache.index_put_((live,), buffers.out[: case.size])
        return {"out": buffers.out}

    def written(self, buffers: Buffers, case: Case) -> Mapping[str, Any]:
        return {"cache": torch.tensor([slot in case.order[: case.size] for slot in range(SLOTS)])}


class DummySlot(ValidSentinel):
    """One slot more than is served takes the padding rows' writes; it is scratch."""

    scratch = ("spill",)

    def allocate(self, device: torch.device) -> Buffers:
        buffers = super().allocate(device)
        buffers.cache = torch.zeros(SLOTS + 1, device=device)
        return Buffers(**dict(buffers.items()), spill=buffers.cache[SLOTS:])

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        buffers.slots[case.size :].fill_(SLOTS)

    def written(self, buffers: Buffers, case: Case) -> Mapping[str, Any]:
        return {"cache": torch.tensor([slot in case.order[: case.size] for slot in range(SLOTS + 1)])}


class LeaksUnwritten(WithoutReference):
    """One scale for the bucket is taken over all rows, also over rows that no batch ever writes."""

    spare = 2

    def allocate(self, device: torch.device) -> Buffers:
        buffers = super().allocate(device)
        buffers.x = torch.empty(ROWS + self.spare, WIDTH, device=device)
        return buffers

    def stage(self, buffers: Buffers, case: Case) -> None:
        buffers.lens.copy_(case.lens)
        case.x.fill(buffers.x[:ROWS])

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        scale = self.scaled(buffers).abs().amax()
        valid = buffers.columns < buffers.lens.unsqueeze(1)
        rows = torch.where(valid, buffers.x[:ROWS], torch.zeros_like(buffers.x[:ROWS]))
        buffers.out.copy_(rows.sum(1) / (1 + scale))
        return {"out": buffers.out}

    def scaled(self, buffers: Buffers) -> torch.Tensor:
        """The rows that the scale is taken over."""
        return buffers.x


class ScalesLiveRows(LeaksUnwritten):
    def scaled(self, buffers: Buffers) -> torch.Tensor:
        return buffers.x[:ROWS]


class OmitsOptional(WithoutReference):
    """An optional bias is copied when it is there; when it is not, the previous request's stays."""

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(**dict(super().allocate(device).items()), bias=torch.zeros(ROWS, device=device))

    def cases(self) -> SearchStrategy[Case]:
        return case(
            lens=lengths(ROWS, 1, WIDTH, page=8),
            x=contents(("normal",)),
            biased=st.booleans(),
            bias=contents(("ramp",)),
        )

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        if case.biased:
            case.bias.fill(buffers.bias)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.masked(buffers).sum(1) + buffers.bias)
        return {"out": buffers.out}


class ClearsOptional(OmitsOptional):
    def stage(self, buffers: Buffers, case: Case) -> None:
        buffers.bias.zero_()
        super().stage(buffers, case)


class CutsToBucket(WithoutReference):
    """A batch larger than the bucket is cut to it; the eager engine serves all of it."""

    most = ROWS + 2

    def cases(self) -> SearchStrategy[Case]:
        return case(lens=lengths(ROWS + 2, 1, WIDTH, page=8), x=contents(("normal",)), size=batch(self.most))

    def stage(self, buffers: Buffers, case: Case) -> None:
        lens = torch.where(torch.arange(ROWS + 2) < case.size, case.lens, 0)
        buffers.lens.copy_(lens[:ROWS])
        buffers.x.copy_(case.x.tensor(ROWS + 2, WIDTH)[:ROWS])

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        device = buffers.x.device
        rows = case.x.tensor(ROWS + 2, WIDTH).to(device)[: case.size]
        valid = buffers.columns < case.lens[: case.size].to(device).unsqueeze(1)
        return {"out": torch.where(valid, rows, torch.zeros_like(rows)).sum(1)}


class RefusesLargerBatch(CutsToBucket):
    most = ROWS + 1

    def stage(self, buffers: Buffers, case: Case) -> None:
        if case.size > ROWS:
            raise CaseRefused(f"{case.size} requests do not fit the bucket of {ROWS}")
        super().stage(buffers, case)


class ExceedsCapacity(WithoutReference):
    """Rows may grow beyond the width that the buffers have; nobody looks."""

    longest = WIDTH + 8

    def cases(self) -> SearchStrategy[Case]:
        return case(lens=lengths(ROWS, 1, self.longest, page=8), x=contents(("normal",)))

    def stage(self, buffers: Buffers, case: Case) -> None:
        buffers.lens.copy_(case.lens)
        buffers.x.copy_(case.x.tensor(ROWS, WIDTH + 8)[:, :WIDTH])

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.masked(buffers).cumsum(1)[:, -1])
        return {"out": buffers.out}

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        device = buffers.x.device
        rows = case.x.tensor(ROWS, WIDTH + 8).to(device)
        valid = torch.arange(WIDTH + 8, device=device) < case.lens.to(device).unsqueeze(1)
        return {"out": torch.where(valid, rows, torch.zeros_like(rows)).cumsum(1)[:, -1]}


class RefusesBeyondCapacity(ExceedsCapacity):
    longest = WIDTH + 1

    def stage(self, buffers: Buffers, case: Case) -> None:
        if int(case.lens.max()) > WIDTH:
            raise CaseRefused(f"a row of {int(case.lens.max())} does not fit the capacity of {WIDTH}")
        super().stage(buffers, case)


class ReadsUnstaged(WithoutReference):
    """Rows are padded to a full tile that nothing ever fills: the answer is right as long as the mask covers it."""

    tile = 32

    def allocate(self, device: torch.device) -> Buffers:
        buffers = dict(super().allocate(device).items())
        buffers["x"] = self.rows(device)
        buffers["columns"] = torch.arange(self.tile, dtype=torch.int32, device=device)
        return Buffers(**buffers)

    def rows(self, device: torch.device) -> torch.Tensor:
        """The static input [rows, tile]."""
        return torch.empty(ROWS, self.tile, device=device)

    def stage(self, buffers: Buffers, case: Case) -> None:
        buffers.lens.copy_(case.lens)
        case.x.fill(buffers.x[:, :WIDTH])


class FillsTile(ReadsUnstaged):
    def rows(self, device: torch.device) -> torch.Tensor:
        return torch.zeros(ROWS, self.tile, device=device)


class ServesBucketElsewhere(WithoutReference):
    """One bucket has no graph: its cases are refused, and the engine serves them eagerly without a word."""

    without_graph: tuple[int, ...] = (4,)

    def allocate(self, device: torch.device) -> Buffers:
        self.bucket = 1
        return super().allocate(device)

    def cases(self) -> SearchStrategy[Case]:
        return case(lens=lengths(ROWS, 1, WIDTH, page=8), x=contents(("normal",)), bucket=st.sampled_from((1, 2, 4)))

    def key(self, case: Case) -> int:
        return int(case.bucket)

    def stage(self, buffers: Buffers, case: Case) -> None:
        if case.bucket in self.without_graph:
            raise CaseRefused(f"no graph for bucket {case.bucket}")
        super().stage(buffers, case)
        self.bucket = int(case.bucket)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.masked(buffers).sum(1) * self.bucket)
        return {"out": buffers.out}


class ServesEveryBucket(ServesBucketElsewhere):
    without_graph = ()


ZOO = [
    Entry(
        "GC608",
        "serves-bucket-elsewhere",
        ServesBucketElsewhere,
        ServesEveryBucket,
        "the cases of one graph key are never replayed",
        severity=Severity.WARNING,
    ),
    Entry(
        "GC704",
        "reads-unstaged",
        ReadsUnstaged,
        FillsTile,
        "a tile is read that neither allocation nor any staging filled",
        severity=Severity.WARNING,
        backends=("emulator",),
        reason="which elements a kernel reads is known of the recorded torch operations only",
    ),
    Entry("GC701", "cuts-to-bucket", CutsToBucket, RefusesLargerBatch, "a batch larger than the bucket is cut"),
    Entry("GC702", "stale-tail", StaleTail, FilledTail, "padding rows keep the previous batch's lengths"),
    Entry("GC703", "valid-sentinel", ValidSentinel, DummySlot, "slot -1 wraps to the last slot"),
    Entry("GC704", "leaks-unwritten", LeaksUnwritten, ScalesLiveRows, "memory that nothing wrote reaches live rows"),
    Entry("GC705", "omits-optional", OmitsOptional, ClearsOptional, "an absent input leaves the previous value"),
    Entry("GC706", "exceeds-capacity", ExceedsCapacity, RefusesBeyondCapacity, "lengths exceed what was captured"),
]
