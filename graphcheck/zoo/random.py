"""Random numbers inside the region."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from graphcheck.component import Buffers
from graphcheck.zoo import Entry
from graphcheck.zoo.rows import ROWS, WithoutReference


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


ZOO = [
    Entry("GC801", "draws-unregistered", DrawsUnregistered, DrawsFromDefault, "a generator that no graph knows"),
    Entry("GC802", "seeds-inside", SeedsInside, DrawsFromDefault, "the region seeds its generator"),
]
