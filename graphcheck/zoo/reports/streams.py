"""Reports of side streams, disposed storage, random state, and outputs that outlive their replay."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from graphcheck.cases import Case
from graphcheck.component import Buffers
from graphcheck.strategies import case, contents, integers
from graphcheck.zoo import Entry
from graphcheck.zoo.reports.attention import CAPACITY, EXACT_VALUES, B, DecodeAttention, products

BLOCKS = 8


class LeavesPrefetchInFlight(DecodeAttention):
    """A break between two segments queues a prefetch on a side stream, and the next segment ends without joining it."""

    scratch = ("prefetched",)

    def allocate(self, device: torch.device) -> Buffers:
        self.prefetch = torch.cuda.Stream()
        return Buffers(**dict(super().allocate(device).items()), prefetched=torch.empty(B, CAPACITY, device=device))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        outputs = super().run(buffers)
        self.prefetch.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.prefetch):
            buffers.prefetched.copy_(buffers.kv[0])
        self.next_segment(buffers)
        return outputs

    def next_segment(self, buffers: Buffers) -> None:
        """What the segment after the break does first and last."""
        buffers.out.mul_(2)


class JoinsPrefetch(LeavesPrefetchInFlight):
    def next_segment(self, buffers: Buffers) -> None:
        torch.cuda.current_stream().wait_stream(self.prefetch)
        super().next_segment(buffers)


class DisposesHiddenStates(DecodeAttention):
    """The shared-expert branch empties the hidden states before the routed branch, which still holds a view of them."""

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        hidden = buffers.q * 2
        routed = hidden.view(1, B)
        shared = hidden + 1
        self.dispose(hidden)
        buffers.out.copy_((routed * shared).sum(0) + self.weighted(buffers, buffers.kv_lens).sum(1))
        return {"out": buffers.out}

    def dispose(self, hidden: torch.Tensor) -> None:
        """Give the memory of the hidden states back as early as possible."""
        hidden.untyped_storage().resize_(0)


class DisposesOwnAlias(DisposesHiddenStates):
    """The branch empties its own alias only."""

    def dispose(self, hidden: torch.Tensor) -> None:
        alias = hidden.detach()
        alias.data = hidden.new_empty(0)


class DropsWithCapturedSeed(DecodeAttention):
    """Dropout draws from a generator whose seed the graph does not know: reseeding it changes no replay."""

    def allocate(self, device: torch.device) -> Buffers:
        self.generator = torch.Generator(device)
        return Buffers(
            **dict(super().allocate(device).items()),
            seed=torch.zeros((), dtype=torch.int64, device=device),
            rows=torch.arange(B, device=device),
        )

    def cases(self) -> SearchStrategy[Case]:
        return case(tokens=contents(EXACT_VALUES), seed=integers(0, 9))

    def stage(self, buffers: Buffers, case: Case) -> None:
        self.stage_tokens(buffers, case)
        self.generator.manual_seed(case.seed)
        buffers.seed.fill_(case.seed)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        rows = (buffers.kv[0] * buffers.kv[1]).sum(1) * buffers.q
        buffers.out.copy_(torch.where(self.kept(buffers), rows, 0.0))
        return {"out": buffers.out}

    def kept(self, buffers: Buffers) -> torch.Tensor:
        """Rows that dropout keeps, bool [B], device."""
        return torch.rand(B, generator=self.generator, device=buffers.q.device) < 0.5


class DropsWithSeedTensor(DropsWithCapturedSeed):
    """A counter generator whose seed lies on the device."""

    def kept(self, buffers: Buffers) -> torch.Tensor:
        mixed = (buffers.seed * 7919 + buffers.rows * 104_729 + 1) * 2_654_435_761
        return mixed.remainder(65_536) < 32_768


class SavesHostState(DropsWithSeedTensor):
    """Forward and backward agree on the mask by saving and restoring the generator's state on the host."""

    def kept(self, buffers: Buffers) -> torch.Tensor:
        state = torch.cuda.get_rng_state()
        forward = torch.rand(B, device=buffers.q.device)
        torch.cuda.set_rng_state(state)
        return torch.rand(B, device=buffers.q.device) <= forward


class KeepsRunOutput(DecodeAttention):
    """The caller keeps the output of one run of a compiled step and reads it after the next run."""

    def allocate(self, device: torch.device) -> Buffers:
        self.previous: torch.Tensor | None = None
        return super().allocate(device)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        return {"hidden": self.weighted(buffers, buffers.kv_lens).sum(1)}

    def observe(self, buffers: Buffers, outputs: Mapping[str, torch.Tensor]) -> Any:
        previous, self.previous = self.previous, self.keep(outputs["hidden"])
        return self.previous if previous is None else previous

    def keep(self, hidden: torch.Tensor) -> torch.Tensor:
        """What the caller holds on to."""
        return hidden


class ClonesRunOutput(KeepsRunOutput):
    def keep(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.clone()


class Arena:
    """An allocator of result blocks that knows what is held by a name, and nothing of graphs."""

    def __init__(self) -> None:
        self.held: dict[Hashable, int] = {}

    def take(self) -> int:
        """The first block that no name holds."""
        return next(block for block in range(BLOCKS) if block not in self.held.values())


class RebindsCapturedResult(DecodeAttention):
    """Two captured reductions bind their result to a name of the host; its block is free again for the second one."""

    def allocate(self, device: torch.device) -> Buffers:
        self.arena = Arena()
        self.kind = "min"
        self.results: dict[str, torch.Tensor] = {}
        return Buffers(**dict(super().allocate(device).items()), blocks=torch.zeros(BLOCKS, B, device=device))

    def cases(self) -> SearchStrategy[Case]:
        return case(tokens=contents(EXACT_VALUES), kind=st.sampled_from(("min", "max")))

    def key(self, case: Case) -> Hashable:
        return str(case.kind)

    def stage(self, buffers: Buffers, case: Case) -> None:
        self.stage_tokens(buffers, case)
        self.kind = case.kind

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        reduced = buffers.blocks[self.block()]
        weighted = products(buffers)
        reduced.copy_(weighted.amin(1) if self.kind == "min" else weighted.amax(1))
        return {"reduced": reduced}

    def block(self) -> int:
        """The block of this reduction's result."""
        return self.arena.take()

    def observe(self, buffers: Buffers, outputs: Mapping[str, torch.Tensor]) -> Any:
        self.arena.held[self.kind] = outputs["reduced"].storage_offset() // B
        self.results[self.kind] = outputs["reduced"]
        return dict(sorted(self.results.items()))


class AllocatesResultsAhead(RebindsCapturedResult):
    def block(self) -> int:
        return ("min", "max").index(self.kind)


ZOO = [
    Entry(
        "GC202",
        "b063-prefetch-not-joined",
        LeavesPrefetchInFlight,
        JoinsPrefetch,
        "work queued between two segments is not joined when the capture ends",
    ),
    Entry(
        "GC410",
        "b067-hidden-states-disposed-early",
        DisposesHiddenStates,
        DisposesOwnAlias,
        "a branch empties storage that a later captured kernel reads",
        backends=("emulator",),
        reason="a null address faults on a real device, and the process is lost",
    ),
    Entry(
        "GC801",
        "b069-dropout-ignores-reseeding",
        DropsWithCapturedSeed,
        DropsWithSeedTensor,
        "the graph holds the seed of its capture",
    ),
    Entry(
        "GC802",
        "b071-random-state-saved-on-host",
        SavesHostState,
        DropsWithSeedTensor,
        "forward and backward agree through host calls on random state",
    ),
    Entry(
        "GC501",
        "b077-output-read-after-next-run",
        KeepsRunOutput,
        ClonesRunOutput,
        "the output of one run is read after the next run reused its block",
    ),
    Entry(
        "GC504",
        "b085-result-block-handed-to-second-graph",
        RebindsCapturedResult,
        AllocatesResultsAhead,
        "a pool without graph isolation gives a captured result's block to the next capture",
    ),
]
