"""The small attention that most reported components run: one query a request over the keys it has cached."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from hypothesis.strategies import SearchStrategy

from graphcheck.cases import Case
from graphcheck.component import Buffers, Component
from graphcheck.strategies import case, contents, lengths

B, CAPACITY, PAGE = 4, 16, 4
# Queries are multiples of 1/32, keys and values small integers: sums are exact whatever the order of a reduction.
EXACT_VALUES = ("ramp",)


class DecodeAttention(Component):
    """Unnormalised attention of one query a request over its cached keys, all lengths read on the device."""

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(
            q=torch.empty(B, device=device),
            kv=torch.empty(2, B, CAPACITY, device=device),
            kv_lens=torch.ones(B, dtype=torch.int32, device=device),
            out=torch.empty(B, device=device),
        )

    def cases(self) -> SearchStrategy[Case]:
        return case(kv_lens=lengths(B, 1, CAPACITY, page=PAGE), tokens=contents(EXACT_VALUES))

    def stage(self, buffers: Buffers, case: Case) -> None:
        self.stage_tokens(buffers, case)
        buffers.kv_lens.copy_(case.kv_lens)

    def stage_tokens(self, buffers: Buffers, case: Case) -> None:
        """Queries, keys and values of the case."""
        case.tokens.fill(buffers.q)
        case.tokens.fill(buffers.kv, 1)
        buffers.kv.round_()

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.weighted(buffers, buffers.kv_lens).sum(1))
        return {"out": buffers.out}

    def weighted(self, buffers: Buffers, kv_lens: torch.Tensor) -> torch.Tensor:
        """Each value times its score, zero beyond ``kv_lens`` [B], device; float32 [B, CAPACITY], device."""
        return torch.where(columns(buffers.q.device) < kv_lens.unsqueeze(1), products(buffers), 0.0)


def columns(device: torch.device) -> torch.Tensor:
    """Positions of the keys, int64 [CAPACITY], device."""
    return torch.arange(CAPACITY, device=device)


def products(buffers: Buffers) -> torch.Tensor:
    """Each value times its score, float32 [B, CAPACITY], device."""
    return buffers.q.unsqueeze(1) * buffers.kv[0] * buffers.kv[1]
