"""Reports of inputs, weights and workspaces that lie elsewhere after the capture."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from graphcheck.cases import Case
from graphcheck.component import Buffers
from graphcheck.strategies import case, contents, integers, lengths
from graphcheck.zoo import Entry
from graphcheck.zoo.reports.attention import CAPACITY, EXACT_VALUES, PAGE, B, DecodeAttention

EXPERTS = 3


class GrowsForSmallBatch(DecodeAttention):
    """Graphs are captured from large to small batch, and the kernel of the small one needs more scratch."""

    scratch = ("workspace",)

    def allocate(self, device: torch.device) -> Buffers:
        self.batch_size = B
        return Buffers(**dict(super().allocate(device).items()), workspace=torch.empty(0, device=device))

    def cases(self) -> SearchStrategy[Case]:
        return case(
            kv_lens=lengths(B, 1, CAPACITY, page=PAGE),
            tokens=contents(EXACT_VALUES),
            batch_size=st.sampled_from((B, B // 2)),
        )

    def key(self, case: Case) -> Hashable:
        return int(case.batch_size)

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        buffers.kv_lens[case.batch_size :].zero_()
        self.batch_size = case.batch_size
        self.reserve(buffers, needed(case.batch_size))

    def reserve(self, buffers: Buffers, count: int) -> None:
        """Have scratch for ``count`` partial results."""
        if buffers.workspace.numel() < count:
            buffers.workspace = torch.empty(count, device=buffers.q.device)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        rows, splits = self.batch_size, needed(self.batch_size) // self.batch_size
        partials = buffers.workspace[: rows * splits].view(rows, splits)
        torch.sum(self.weighted(buffers, buffers.kv_lens)[:rows].view(rows, splits, -1), 2, out=partials)
        buffers.out.zero_()
        buffers.out[:rows].copy_(partials.sum(1))
        return {"out": buffers.out}


def needed(batch_size: int) -> int:
    """Partial results of a batch: the small batch is split over the keys, the large one is not."""
    return batch_size * (CAPACITY // PAGE if batch_size < B else 1)


class ReservesForEveryShape(GrowsForSmallBatch):
    """Every shape is warmed up before any is captured, so the scratch has its final size."""

    def allocate(self, device: torch.device) -> Buffers:
        buffers = super().allocate(device)
        self.reserve(buffers, max(needed(B), needed(B // 2)))
        return buffers


class RestoresStateElsewhere(DecodeAttention):
    """Sleeping for a weight sync frees the recurrent state and brings it back in other memory."""

    mutates = ("ssm_state",)
    inert = {"synced": "sleeping and waking up changes no value"}

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(**dict(super().allocate(device).items()), ssm_state=torch.zeros(B, device=device))

    def cases(self) -> SearchStrategy[Case]:
        return case(kv_lens=lengths(B, 1, CAPACITY, page=PAGE), tokens=contents(EXACT_VALUES), synced=st.booleans())

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        if case.synced:
            self.wake(buffers, buffers.ssm_state.clone())

    def wake(self, buffers: Buffers, saved: torch.Tensor) -> None:
        """Bring the saved state [B] back after the sync."""
        buffers.ssm_state.data = saved

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.ssm_state.mul_(0.5).add_(self.weighted(buffers, buffers.kv_lens).sum(1))
        buffers.out.copy_(buffers.ssm_state)
        return {"out": buffers.out}


class RestoresStateInPlace(RestoresStateElsewhere):
    def wake(self, buffers: Buffers, saved: torch.Tensor) -> None:
        buffers.ssm_state.copy_(saved)


class ScaledProjection(torch.nn.Module):
    """A projection whose dequantisation scale hides in a plain dictionary."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(B, device=device), requires_grad=False)
        self.derived = {"scale": torch.ones(B, device=device)}


class ReloadsRegisteredOnly(DecodeAttention):
    """A reload gives every tensor new memory and copies back those that are registered as parameters or buffers."""

    def allocate(self, device: torch.device) -> Buffers:
        self.projection = ScaledProjection(device)
        return super().allocate(device)

    def cases(self) -> SearchStrategy[Case]:
        return case(
            kv_lens=lengths(B, 1, CAPACITY, page=PAGE), tokens=contents(EXACT_VALUES), weights=contents(EXACT_VALUES)
        )

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        placed = [tensor.data for tensor in self.preserved()]
        for part, tensor in enumerate((self.projection.weight, self.projection.derived["scale"])):
            tensor.data = case.weights.tensor(B, part=part).to(buffers.q.device)
        for tensor, place in zip(self.preserved(), placed, strict=True):
            place.copy_(tensor.data)
            tensor.data = place

    def preserved(self) -> list[torch.Tensor]:
        """The tensors whose memory a reload preserves."""
        return list(self.projection.parameters())

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        scaled = self.projection.weight * self.projection.derived["scale"]
        buffers.out.copy_(self.weighted(buffers, buffers.kv_lens).sum(1) * scaled)
        return {"out": buffers.out}


class ReloadsRecursively(ReloadsRegisteredOnly):
    def preserved(self) -> list[torch.Tensor]:
        return [*super().preserved(), *self.projection.derived.values()]


class SetterReallocates(DecodeAttention):
    """Setters of conditioning and timesteps free and allocate; the capture signature holds the shapes only."""

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(
            **dict(super().allocate(device).items()),
            prompt_embeds=torch.zeros(B, device=device),
            timesteps=torch.zeros(B, device=device),
        )

    def cases(self) -> SearchStrategy[Case]:
        return case(tokens=contents(EXACT_VALUES), prompt=contents(EXACT_VALUES), timestep=integers(1, 50))

    def key(self, case: Case) -> Hashable:
        return "prompt_embeds", B, "timesteps", B

    def stage(self, buffers: Buffers, case: Case) -> None:
        self.stage_tokens(buffers, case)
        self.assign(buffers.prompt_embeds, case.prompt.tensor(B))
        self.assign(buffers.timesteps, torch.full((B,), float(case.timestep)))

    def assign(self, held: torch.Tensor, value: torch.Tensor) -> None:
        """The setter: give ``held``, device, the value, host."""
        held.data = value.to(held.device)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        noise = (buffers.kv[0] * buffers.kv[1]).sum(1)
        buffers.out.copy_(noise * buffers.prompt_embeds + buffers.q * buffers.timesteps)
        return {"out": buffers.out}


class SetterCopies(SetterReallocates):
    def assign(self, held: torch.Tensor, value: torch.Tensor) -> None:
        held.copy_(value)


class AlignsEagerly(DecodeAttention):
    """An opaque op between two captured segments runs eagerly and returns a new tensor at each step."""

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(
            **dict(super().allocate(device).items()),
            sorted_ids=torch.arange(B, device=device),
            experts=torch.zeros(B, dtype=torch.int64, device=device),
        )

    def cases(self) -> SearchStrategy[Case]:
        experts = st.lists(st.integers(0, EXPERTS - 1), min_size=B, max_size=B)
        return case(kv_lens=lengths(B, 1, CAPACITY, page=PAGE), tokens=contents(EXACT_VALUES), experts=experts)

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        buffers.experts.copy_(torch.tensor(case.experts))
        self.take(buffers, torch.argsort(buffers.experts, stable=True))

    def take(self, buffers: Buffers, sorted_ids: torch.Tensor) -> None:
        """Hand the eager op's result [B] int64, device, to the next segment."""
        buffers.sorted_ids = sorted_ids

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        # Clamped: ids read from memory that was freed stay inside.
        ids = buffers.sorted_ids.clamp(0, B - 1)
        buffers.out.copy_(self.weighted(buffers, buffers.kv_lens).sum(1).index_select(0, ids))
        return {"out": buffers.out}


class AlignsIntoBuffer(AlignsEagerly):
    def take(self, buffers: Buffers, sorted_ids: torch.Tensor) -> None:
        buffers.sorted_ids.copy_(sorted_ids)


class ReallocatesInPreparation(DecodeAttention):
    """The replay preparation makes new cumulative lengths although it was told not to reallocate."""

    def allocate(self, device: torch.device) -> Buffers:
        self.cu_seqlens = torch.zeros(B + 1, dtype=torch.int32, device=device)
        return super().allocate(device)

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.prepare(case.kv_lens, forbid_realloc=True)

    def prepare(self, kv_lens: torch.Tensor, forbid_realloc: bool) -> None:
        """Bring cumulative lengths up to date. ``kv_lens`` [B] int32, host."""
        cu_seqlens = torch.nn.functional.pad(kv_lens.cumsum(0, dtype=torch.int32), (1, 0))
        self.cu_seqlens = cu_seqlens.to(self.cu_seqlens.device)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        lens = self.cu_seqlens[1:] - self.cu_seqlens[:-1]
        buffers.out.copy_(self.weighted(buffers, lens).sum(1))
        return {"out": buffers.out}


class CopiesInPreparation(ReallocatesInPreparation):
    def prepare(self, kv_lens: torch.Tensor, forbid_realloc: bool) -> None:
        self.cu_seqlens[1:].copy_(kv_lens.cumsum(0, dtype=torch.int32))


class SharesMetadataSlot(DecodeAttention):
    """Plain and LoRA graphs exist for one batch size, and attention metadata is stored by batch size alone."""

    def allocate(self, device: torch.device) -> Buffers:
        self.metadata: dict[Hashable, torch.Tensor] = {}
        self.registered: set[tuple[int, bool]] = set()
        self.adapted = False
        return super().allocate(device)

    def cases(self) -> SearchStrategy[Case]:
        return case(kv_lens=lengths(B, 1, CAPACITY, page=PAGE), tokens=contents(EXACT_VALUES), adapted=st.booleans())

    def key(self, case: Case) -> tuple[int, bool]:
        return B, bool(case.adapted)

    def slot(self, case: Case) -> Hashable:
        """Under which key the metadata of a graph is stored."""
        return B

    def stage(self, buffers: Buffers, case: Case) -> None:
        super().stage(buffers, case)
        self.adapted = bool(case.adapted)
        # What the engine does once a graph, before it captures it.
        if self.key(case) not in self.registered:
            self.registered.add(self.key(case))
            self.metadata[self.slot(case)] = torch.zeros(B, dtype=torch.int32, device=buffers.q.device)
        self.current = self.slot(case)
        self.metadata[self.current].copy_(case.kv_lens)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        total = self.weighted(buffers, self.metadata[self.current]).sum(1)
        buffers.out.copy_(total * 2 if self.adapted else total)
        return {"out": buffers.out}


class SlotForEachVariant(SharesMetadataSlot):
    def allocate(self, device: torch.device) -> Buffers:
        buffers = super().allocate(device)
        self.registered = {(B, False), (B, True)}
        self.metadata = {key: torch.zeros(B, dtype=torch.int32, device=device) for key in sorted(self.registered)}
        return buffers

    def slot(self, case: Case) -> Hashable:
        return self.key(case)


class ExemptsCopySource(DecodeAttention):
    """The change check exempts KV copies, whose destination moves through a table; their source moves unchecked."""

    begin = 0

    def cases(self) -> SearchStrategy[Case]:
        return case(tokens=contents(EXACT_VALUES), begin=st.integers(0, CAPACITY - PAGE))

    def key(self, case: Case) -> Hashable:
        return "copy", B, PAGE

    def stage(self, buffers: Buffers, case: Case) -> None:
        self.stage_tokens(buffers, case)
        self.begin = case.begin

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        window = buffers.kv[0][:, self.begin : self.begin + PAGE]
        buffers.out.copy_((window * buffers.q.unsqueeze(1)).sum(1))
        return {"out": buffers.out}


class ChecksCopySource(ExemptsCopySource):
    def key(self, case: Case) -> Hashable:
        return super().key(case), int(case.begin)


ZOO = [
    Entry(
        "GC404",
        "b019-workspace-grows-for-smaller-batch",
        GrowsForSmallBatch,
        ReservesForEveryShape,
        "a graph captured later needs more scratch and replaces it under an earlier graph",
    ),
    Entry(
        "GC403",
        "b033-recurrent-state-moves-in-weight-sync",
        RestoresStateElsewhere,
        RestoresStateInPlace,
        "recurrent state comes back in other memory",
    ),
    Entry(
        "GC403",
        "b035-hidden-tensor-missed-by-reload",
        ReloadsRegisteredOnly,
        ReloadsRecursively,
        "a reload keeps the memory of registered tensors only",
    ),
    Entry(
        "GC403",
        "b037-setters-reallocate",
        SetterReallocates,
        SetterCopies,
        "setters give conditioning other memory and the signature holds shapes only",
    ),
    Entry(
        "GC401",
        "b097-eager-op-between-segments-allocates",
        AlignsEagerly,
        AlignsIntoBuffer,
        "an eager op hands a new tensor to a captured segment at each step",
    ),
    Entry(
        "GC401",
        "b103-cumulative-lengths-reallocated",
        ReallocatesInPreparation,
        CopiesInPreparation,
        "the preparation rebinds cumulative lengths that the graph reads",
    ),
    Entry(
        "GC311",
        "b051-copy-source-not-in-fingerprint",
        ExemptsCopySource,
        ChecksCopySource,
        "the source of a copy slides inside its buffer and is not in the key",
    ),
    Entry(
        "GC311",
        "b049-two-variants-share-metadata-slot",
        SharesMetadataSlot,
        SlotForEachVariant,
        "metadata is stored by batch size and replaced by the capture of the other variant",
    ),
]
