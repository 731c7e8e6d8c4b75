"""What the host knew at capture: counts, draft lengths, random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from eagle3.component.accepting import Accept
from eagle3.component.models import BUCKET
from eagle3.loop import DraftLoop
from eagle3.zoo.lengths import RestoresLengths
from graphcheck import Buffers, Case
from graphcheck.zoo import Entry


class GathersAtCapturedCount(RestoresLengths):
    """The host slices the last kept row out by the counts that it has just read."""

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.counts = [*self.kept(case), *[1] * (BUCKET - case.size)]

    def draft(self, loop: DraftLoop, tokens: torch.Tensor, captured: torch.Tensor) -> Mapping[str, torch.Tensor]:
        if loop.lengths.batch < BUCKET:
            return super().draft(loop, tokens, captured)
        loop.lengths.after_accept()
        loop.ladder.plan()
        attend = partial(loop.ladder.dense_layer, cache=loop.cache)
        hidden = loop.head.layer(tokens.reshape(-1), loop.head.fuse(captured), loop.lengths.positions, attend)
        rows = [request * loop.lengths.qo_len + count - 1 for request, count in enumerate(self.counts)]
        return {"drafts": loop.chain(torch.cat([hidden.narrow(0, row, 1) for row in rows]))}


class KeyedByDraftLength(Accept):
    """One graph for each draft length."""


class KeyLacksDraftLength(KeyedByDraftLength):
    """All draft lengths share a graph; it accepts as many drafts as there were at its capture."""

    def key(self, case: Case) -> Any:
        return None


class StagesUniforms(Accept):
    """Uniforms are staged on the device before each step."""

    DRAFT_LENS = {"l3": 3}


class FillsUniforms(StagesUniforms):
    """The region fills the uniforms in from a number of the host's."""

    work = ("uniforms",)

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.uniform = (case.draw * 0.6180339887) % 1.0

    def accept(self, held: Mapping[str, torch.Tensor]) -> None:
        held["uniforms"].fill_(self.uniform)
        super().accept(held)


class SeedsInside(StagesUniforms):
    """Each step seeds the generator and draws the uniforms itself."""

    def accept(self, held: Mapping[str, torch.Tensor]) -> None:
        torch.cuda.manual_seed(17)
        held["uniforms"].uniform_()
        super().accept(held)


class CountsOutside(StagesUniforms):
    """The consumer counts the steps."""

    def allocate(self, device: torch.device) -> Buffers:
        self.steps = 0
        return super().allocate(device)

    def observe(self, buffers: Buffers, outputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        self.count()
        return torch.tensor(self.steps)

    def count(self) -> None:
        """A step has run."""
        self.steps += 1


class CountsInside(CountsOutside):
    """The region counts the steps on the host, so the statistics stand still in replays."""

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        self.steps += 1
        return super().run(buffers)

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        self.steps += 1
        return super().eager(buffers, case)

    def count(self) -> None:
        return None


ZOO = [
    Entry(
        "GC302",
        "eagle3-gathers-at-captured-count",
        GathersAtCapturedCount,
        RestoresLengths,
        "drafts start at the row that was last kept at capture",
    ),
    Entry(
        "GC311",
        "eagle3-key-lacks-draft-length",
        KeyLacksDraftLength,
        KeyedByDraftLength,
        "steps of another draft length replay this one's graph",
    ),
    Entry(
        "GC301",
        "eagle3-fills-uniforms",
        FillsUniforms,
        StagesUniforms,
        "rejection sampling replays the captured random number",
    ),
    Entry(
        "GC802", "eagle3-seeds-inside", SeedsInside, StagesUniforms, "the step seeds the generator that it draws from"
    ),
    Entry(
        "GC308",
        "eagle3-counts-inside",
        CountsInside,
        CountsOutside,
        "acceptance statistics are kept by host code inside the region",
    ),
]
