"""Defects that show only as symptoms: not repeatable, wrong, undeclared, vacuous."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from hypothesis.strategies import SearchStrategy

from graphcheck.cases import Case
from graphcheck.component import Buffers
from graphcheck.strategies import case, contents, lengths
from graphcheck.zoo import Entry
from graphcheck.zoo.rows import ROWS, WIDTH, MaskedSum, WithoutReference


class AccumulatesUninitialised(WithoutReference):
    """Adds into memory of the graph's pool that it never clears: each replay goes on from the last."""

    inert = {"x": "only the lengths are summed"}

    def cases(self) -> SearchStrategy[Case]:
        return case(lens=lengths(ROWS, 1, WIDTH, page=8), x=contents(("normal",)))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        total = torch.empty(ROWS, dtype=torch.int64, device=buffers.x.device)
        total.add_(buffers.lens)
        return {"total": total + 1}


class AccumulatesFromZero(AccumulatesUninitialised):
    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        total = torch.zeros(ROWS, dtype=torch.int64, device=buffers.x.device)
        total.add_(buffers.lens)
        return {"total": total + 1}


class OffByOne(MaskedSum):
    """Counts one entry too many in every row: captured and eager agree, and both are wrong."""

    def masked(self, buffers: Buffers) -> torch.Tensor:
        valid = buffers.columns <= buffers.lens.unsqueeze(1)
        return torch.where(valid, buffers.x, torch.zeros_like(buffers.x))


class WritesInput(MaskedSum):
    """Masks its input in place."""

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.x.mul_(buffers.columns < buffers.lens.unsqueeze(1))
        buffers.out.copy_(buffers.x.sum(1))
        return {"out": buffers.out}


class ForgetsOutput(MaskedSum):
    """Computes the answer and does not write it."""

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        self.masked(buffers).sum(1)
        return {"out": buffers.out}

    reference = WithoutReference.reference


class SumsAnotherWay(WithoutReference):
    """The eager engine sums row by row in another order than the captured region: both are right, the bits differ."""

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.masked(buffers).cumsum(1)[:, -1])
        return {"out": buffers.out}


ZOO = [
    Entry("GC951", "sums-another-way", SumsAnotherWay, MaskedSum, "eager and graph choose other algorithms"),
    Entry(
        "GC960",
        "accumulates-uninitialised",
        AccumulatesUninitialised,
        AccumulatesFromZero,
        "replays accumulate into pool memory that is never cleared",
    ),
    Entry("GC961", "off-by-one", OffByOne, MaskedSum, "the eager answer is wrong as well"),
    Entry("GC962", "writes-input", WritesInput, MaskedSum, "the region writes a buffer it does not declare"),
    Entry("GC963", "forgets-output", ForgetsOutput, MaskedSum, "nothing writes the output"),
]
