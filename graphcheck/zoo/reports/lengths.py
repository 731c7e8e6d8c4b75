"""Reports of host lengths, regimes and layouts that a graph took from the batch it was captured with."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import torch
from hypothesis.strategies import SearchStrategy

from graphcheck.cases import Case
from graphcheck.component import Buffers, Component
from graphcheck.strategies import case, contents, integers, lengths
from graphcheck.zoo import Entry
from graphcheck.zoo.reports.attention import CAPACITY, EXACT_VALUES, PAGE, B, DecodeAttention, columns

READS = 32
Q_LEN = 4
WINDOW = 4


class KeysByPaddedReads(DecodeAttention):
    """Graphs are cached by padded KV reads, and the kernel also takes the longest key length as a host number."""

    max_seqlen_k = CAPACITY

    def key(self, case: Case) -> Hashable:
        return -(-int(case.kv_lens.sum()) // READS) * READS

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.max_seqlen_k = self.bound(case)

    def bound(self, case: Case) -> int:
        """The longest key length that the kernel is launched for."""
        return int(case.kv_lens.max())

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        k, v = buffers.kv[0][:, : self.max_seqlen_k], buffers.kv[1][:, : self.max_seqlen_k]
        valid = columns(buffers.q.device)[: self.max_seqlen_k] < buffers.kv_lens.unsqueeze(1)
        weighted = buffers.q.unsqueeze(1) * k * v
        buffers.out.copy_(torch.where(valid, weighted, 0.0).sum(1))
        return {"out": buffers.out}


class KeysByBucketedLongest(KeysByPaddedReads):
    """The longest key length, rounded up to a bucket, is part of the key and the bucket is what the kernel gets."""

    def bound(self, case: Case) -> int:
        return -(-super().bound(case) // (CAPACITY // 2)) * (CAPACITY // 2)

    def key(self, case: Case) -> Hashable:
        return super().key(case), self.bound(case)


class LaunchesForContext(DecodeAttention):
    """The number of key blocks is worked out on the host from the context length at capture."""

    max_seqlen_k = CAPACITY

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.max_seqlen_k = int(case.kv_lens.max())

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        weighted = self.weighted(buffers, buffers.kv_lens)
        buffers.out.zero_()
        for block in range(-(-self.max_seqlen_k // PAGE)):
            buffers.out.add_(weighted[:, block * PAGE : (block + 1) * PAGE].sum(1))
        return {"out": buffers.out}


class LaunchesForMost(LaunchesForContext):
    def stage(self, buffers: Buffers, case: Case) -> None:
        DecodeAttention.stage(self, buffers, case)


class RaggedDraftExtend(Component):
    """Query tiles have a fixed length, and the refresh cumulates accepted lengths, so offsets point between tiles."""

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(
            hidden=torch.empty(B * Q_LEN, device=device),
            cu_seqlens_q=torch.arange(0, B * Q_LEN + 1, Q_LEN, device=device),
            last=torch.full((B,), Q_LEN - 1, dtype=torch.int64, device=device),
            scale=torch.arange(1, Q_LEN + 1, dtype=torch.float32, device=device),
            out=torch.empty(B, device=device),
        )

    def cases(self) -> SearchStrategy[Case]:
        return case(accepted=lengths(B, 1, Q_LEN), tokens=contents(EXACT_VALUES))

    def stage(self, buffers: Buffers, case: Case) -> None:
        case.tokens.fill(buffers.hidden)
        accepted = case.accepted.long()
        buffers.last.copy_(accepted - 1)
        buffers.cu_seqlens_q[1:].copy_(self.query_lengths(accepted).cumsum(0))

    def query_lengths(self, accepted: torch.Tensor) -> torch.Tensor:
        """Query tokens of each request as the offsets count them, int64 [B], host."""
        return accepted

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        tiles = buffers.hidden.view(B, Q_LEN) * buffers.scale
        chosen = (buffers.cu_seqlens_q[:-1] + buffers.last).clamp(max=B * Q_LEN - 1)
        torch.index_select(tiles.view(-1), 0, chosen, out=buffers.out)
        return {"out": buffers.out}

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        chosen = case.accepted.long() - 1
        rows = torch.arange(B)
        tokens = buffers.hidden.view(B, Q_LEN)
        buffers.out.copy_(tokens[rows, chosen] * buffers.scale[chosen])
        return {"out": buffers.out}


class UniformDraftExtend(RaggedDraftExtend):
    def query_lengths(self, accepted: torch.Tensor) -> torch.Tensor:
        return torch.full_like(accepted, Q_LEN)


class ChoosesWindowOnHost(DecodeAttention):
    """Whether attention is windowed is a host comparison of the current length with the window."""

    current = CAPACITY

    def cases(self) -> SearchStrategy[Case]:
        return case(length=integers(1, CAPACITY), tokens=contents(EXACT_VALUES))

    def stage(self, buffers: Buffers, case: Case) -> None:
        self.stage_tokens(buffers, case)
        self.current = case.length
        buffers.kv_lens.fill_(case.length)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        weighted = self.weighted(buffers, buffers.kv_lens)
        if self.current > WINDOW:
            first = buffers.kv_lens.unsqueeze(1) - WINDOW
            weighted = torch.where(columns(buffers.q.device) >= first, weighted, 0.0)
        buffers.out.copy_(weighted.sum(1))
        return {"out": buffers.out}


class ExpiresWithRegime(ChoosesWindowOnHost):
    def key(self, case: Case) -> Hashable:
        return bool(case.length > WINDOW)


ZOO = [
    Entry(
        "GC302",
        "b001-longest-key-not-in-graph-key",
        KeysByPaddedReads,
        KeysByBucketedLongest,
        "the graph key holds padded sizes, and the kernel also takes the longest key length",
    ),
    Entry(
        "GC302",
        "b003-key-blocks-of-captured-context",
        LaunchesForContext,
        LaunchesForMost,
        "the number of key blocks follows from the context length at capture",
    ),
    Entry(
        "GC312",
        "b005-ragged-draft-extend-offsets",
        RaggedDraftExtend,
        UniformDraftExtend,
        "the kernel reads query tiles of one length, the refresh writes ragged offsets",
    ),
    Entry(
        "GC303",
        "b053-window-regime-on-host",
        ChoosesWindowOnHost,
        ExpiresWithRegime,
        "a graph captured before the window fills keeps the short regime",
    ),
]
