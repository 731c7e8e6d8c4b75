"""The small component that most zoo entries vary: a masked sum over ragged rows."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from hypothesis.strategies import SearchStrategy

from graphcheck.cases import Case
from graphcheck.component import Buffers, Component, Tolerance
from graphcheck.strategies import case, contents, lengths

ROWS, WIDTH = 4, 24


class MaskedSum(Component):
    """Sum over the valid entries of each row: lengths are read on the device, nothing is frozen."""

    tolerance = Tolerance(ulps=8, absolute=1e-4)

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(
            x=torch.empty(ROWS, WIDTH, device=device),
            lens=torch.empty(ROWS, dtype=torch.int32, device=device),
            columns=torch.arange(WIDTH, dtype=torch.int32, device=device),
            out=torch.empty(ROWS, device=device),
        )

    def cases(self) -> SearchStrategy[Case]:
        return case(lens=lengths(ROWS, 0, WIDTH, page=8), x=contents(("normal", "ramp")))

    def stage(self, buffers: Buffers, case: Case) -> None:
        buffers.lens.copy_(case.lens)
        case.x.fill(buffers.x)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.masked(buffers).sum(1))
        return {"out": buffers.out}

    def masked(self, buffers: Buffers) -> torch.Tensor:
        """The rows with zeros beyond their lengths, float32 [rows, width], device."""
        valid = buffers.columns < buffers.lens.unsqueeze(1)
        return torch.where(valid, buffers.x, torch.zeros_like(buffers.x))

    def reference(
        self, before: Mapping[str, torch.Tensor], case: Case, outputs: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor] | None:
        rows = [row[:length].double().sum() for row, length in zip(before["x"], case.lens.tolist(), strict=True)]
        return {"out": torch.stack(rows)}


class WithoutReference(MaskedSum):
    """The masked sum for variants whose answer is another one: eager is the only judge."""

    reference = Component.reference
