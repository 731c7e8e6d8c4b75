"""Random numbers inside the region."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from graphcheck.cases import Case
from graphcheck.component import Buffers
from graphcheck.strategies import case, contents, lengths
from graphcheck.zoo import Entry
from graphcheck.zoo.rows import ROWS, WIDTH, WithoutReference


class DrawsFromDefault(WithoutReference):
    """Noise from the default generator, which is registered with every graph."""

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.masked(buffers).sum(1) + torch.rand(ROWS, device=buffers.x.device))
        return {"out": buffers.out}


class DrawsUnregistered(DrawsFromDefault):
    """Noise from a generator of the component's own, which no graph knows."""

    def allocate(self, device: torch.device) -> Buffers:
        self.generator = torch.Generator(device=device)
        self.generator.manual_seed(7)
        return super().allocate(device)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        noise = torch.rand(ROWS, device=buffers.x.device, generator=self.generator)
        buffers.out.copy_(self.masked(buffers).sum(1) + noise)
        return {"out": buffers.out}


class SeedsInside(DrawsFromDefault):
    """The region seeds the generator before it draws."""

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        torch.cuda.manual_seed(11)
        return super().run(buffers)


class AddsNoiseOnRequest(WithoutReference):
    """Noise for the requests that ask for it; region and eager engine draw every time."""

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(**dict(super().allocate(device).items()), noisy=torch.zeros((), device=device))

    def cases(self) -> SearchStrategy[Case]:
        return case(lens=lengths(ROWS, 1, WIDTH, page=8), x=contents(("normal",)), noisy=st.booleans())

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        buffers.noisy.fill_(float(case.noisy))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        noise = torch.rand(ROWS, device=buffers.x.device)
        total = self.masked(buffers).sum(1)
        buffers.out.copy_(torch.where(buffers.noisy > 0, total + noise, total))
        return {"out": buffers.out}


class DrawsOnRequest(AddsNoiseOnRequest):
    """The eager engine draws only when the request asks for it, so the two generators part."""

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        if case.noisy:
            return self.run(buffers)
        buffers.out.copy_(self.masked(buffers).sum(1))
        return {"out": buffers.out}


ZOO = [
    Entry("GC801", "draws-unregistered", DrawsUnregistered, DrawsFromDefault, "a generator that no graph knows"),
    Entry("GC803", "draws-on-request", DrawsOnRequest, AddsNoiseOnRequest, "eager and graph draw different amounts"),
    Entry("GC802", "seeds-inside", SeedsInside, DrawsFromDefault, "the region seeds its generator"),
]
