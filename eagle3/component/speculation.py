"""What the components of the loop share: variants, batches, contents of caches and what nobody owns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from eagle3.component.models import BUCKET, PAGES, VOCABULARY, Models, successors
from eagle3.lengths import DraftLengths, extra_kv_tokens
from graphcheck import Case, Component, batch, case, contents, integers, lengths, page_tables
from msa import PagedCache
from msa.bench import Variant
from msa.component.attention import WORKSPACE, kernels_for, scene_of
from msa.scene import Scene

KINDS = ("normal", "ties", "zeros")
NOTHING = torch.zeros(1, dtype=torch.bool)
# Whatever a row behind the batch holds must be harmless.
TRASH = (-1, 2**31, VOCABULARY, -(2**40))


class Speculation(Component):
    """A bucket of requests at a verify step, for several draft lengths, whose graphs share a pool and the caches.

    A case says how many tokens each request has, and how many of its drafts are kept: 1..1+L with the bonus, by
    construction of the drafts.

    Attributes:
        DRAFT_LENS: L of each variant.
        shared: caches of all variants, by their buffers' names; each has a ``spill_`` page for the rows behind the batch.
        advanced: what a step advances, without the variant; with ``shared`` it is the component's state.
        restored: the part of it that the component puts back itself while it is warmed up.
        work: what a step writes and nobody compares, without the variant.
        prefixes: what the buffers of each driver of msa's begin with.
        kernels: of operators and attention; None for Triton on a real GPU and the portable ones elsewhere.
    """

    DRAFT_LENS: ClassVar[Mapping[str, int]] = {"l1": 1, "l3": 3}
    shared: ClassVar[tuple[str, ...]] = ()
    advanced: ClassVar[tuple[str, ...]] = ()
    restored: ClassVar[tuple[str, ...]] = ()
    work: ClassVar[tuple[str, ...]] = ()
    prefixes: ClassVar[tuple[str, ...]] = ()
    kernels: ClassVar[str | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.mutates = (*cls.shared, *cls.named(cls.advanced))
        cls.restores = cls.named(cls.restored)
        cls.scratch = (*(f"spill_{name}" for name in cls.shared), *cls.named(cls.work))

    @classmethod
    def named(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        """The buffers of all variants with these names."""
        return tuple(f"{name}_{variant}" for variant in cls.DRAFT_LENS for name in names)

    def fields(self) -> dict[str, SearchStrategy[Any]]:
        """The strategies of the case's fields."""
        most = max(self.DRAFT_LENS.values())
        page = 16
        return {
            "variant": st.sampled_from(sorted(self.DRAFT_LENS)),
            "size": batch(BUCKET),
            # What the longest verify step reads: its end is where pages matter.
            "kv_lens": lengths(BUCKET, 2 + most, PAGES * page - extra_kv_tokens(most), page=page, qo_len=1 + most),
            "kept": lengths(BUCKET, 1, 1 + most),
            "table": page_tables(BUCKET, PAGES, BUCKET * PAGES),
            "seed": integers(0, 2**16 - 1),
            "kv": contents(KINDS),
        }

    def cases(self) -> SearchStrategy[Case]:
        return case(**self.fields())

    def key(self, case: Case) -> str:
        return str(case.variant)

    def draft_len(self, case: Case) -> int:
        """L of the case's variant."""
        return self.DRAFT_LENS[case.variant]

    def past(self, case: Case) -> list[int]:
        """Tokens with valid KV of each real request."""
        longest = 1 + max(self.DRAFT_LENS.values())
        return [int(tokens) - longest for tokens in case.kv_lens[: case.size]]

    def kept(self, case: Case) -> list[int]:
        """Tokens that the step keeps of each real request."""
        most = 1 + self.draft_len(case)
        return [min(int(count), most) for count in case.kept[: case.size]]

    def tokens(self, case: Case) -> torch.Tensor:
        """Last token and drafts [B, 1 + L] int64, host: the target keeps as many as the case says."""
        draft_len = self.draft_len(case)
        rows = []
        for request in range(BUCKET):
            last = (case.seed * 7 + request * 29) % VOCABULARY
            row = [last, *successors(last, draft_len)]
            if request < case.size:
                # The first draft that is not kept is wrong; those behind it may be what they like.
                for place in range(self.kept(case)[request], 1 + draft_len):
                    row[place] = (row[place] + 11 + place) % VOCABULARY
            else:
                row = [TRASH[(request + place) % len(TRASH)] for place in range(1 + draft_len)]
            rows.append(row)
        return torch.tensor(rows)

    def scene(self, case: Case, extra: int = 0) -> Scene:
        """The batch with the tokens of its verify step, and ``extra`` more of each request."""
        ahead = 1 + self.draft_len(case) + extra
        kv_lens = tuple(tokens + ahead for tokens in self.past(case))
        return scene_of(Variant(self.models.caches.geometry, ahead, BUCKET), case.table, kv_lens)

    def draft_table(self, case: Case) -> torch.Tensor:
        """The draft cache's page table [B, W] int32, host: it reaches to the last token that a draft step may write."""
        return self.scene(case, extra_kv_tokens(self.draft_len(case))).padded()

    def at_rest(self, case: Case) -> dict[str, Any]:
        """Regions that say of all state that this case does not write it, but for what its variant advances."""
        advanced = {f"{name}_{case.variant}" for name in self.advanced}
        return {name: NOTHING for name in self.mutates if name not in advanced}

    def slots(self, case: Case, counts: list[int]) -> torch.Tensor:
        """The slots of each real request's next ``counts`` tokens, bool [pages + 1, 1, P, 1], host."""
        scene = self.scene(case, extra_kv_tokens(self.draft_len(case)))
        geometry = scene.geometry
        mask = torch.zeros(geometry.num_pages + 1, geometry.page_size, dtype=torch.bool)
        for request, (past, count) in enumerate(zip(self.past(case), counts, strict=True)):
            for position in range(past, past + count):
                mask[scene.slot(request, position)] = True
        return mask[:, None, :, None]

    def drafted_slots(self, case: Case) -> torch.Tensor:
        """The slots of the head's cache that a step writes, bool [pages + 1, 1, P, 1], host: draft step 0, then a chain."""
        draft_len = self.draft_len(case)
        return self.slots(case, [max(1 + draft_len, count + draft_len - 1) for count in self.kept(case)])

    def fill(self, cache: PagedCache, scene: Scene, case: Case, part: int) -> None:
        """The cache holds the case's contents where a request has tokens, and NaN everywhere else."""
        dead = ~scene.alive(history_only=True).to(cache.k.device)
        for number, tensor in enumerate(tensors_of(cache).values()):
            case.kv.fill(tensor, part + number)
            tensor.masked_fill_(dead, math.nan)

    def stage_lengths(self, held: DraftLengths, case: Case) -> None:
        """The step's lengths follow from the case; rows behind the batch are padding."""
        held.stage(self.past(case))

    def choose(self, device: torch.device) -> str:
        """The kernels of this component; what Triton's attention works in is scratch where they are Triton's."""
        self.chosen = kernels_for(device) if self.kernels is None else self.kernels
        if self.chosen == "triton":
            workspace = tuple(f"{prefix}_{name}" for prefix in self.prefixes for name in WORKSPACE)
            self.scratch = (*type(self).scratch, *self.named(workspace))  # type: ignore[misc]
        return self.chosen

    def build(self, device: torch.device) -> Models:
        """The models and caches of this component."""
        return Models(device, self.choose(device))


def derived(*drivers: str) -> tuple[str, ...]:
    """Names of what msa's drivers derive from lengths and of their results, none of which is compared."""
    names = ("qo_offsets", "extents", "valid_pages", "slots", "scores", "page_ids", "out")
    return tuple(f"{driver}_{name}" for driver in drivers for name in names)


def tensors_of(cache: PagedCache) -> dict[str, torch.Tensor]:
    """The tensors of a cache by name."""
    held = {"k": cache.k, "v": cache.v}
    return held if cache.index_k is None else held | {"index_k": cache.index_k}


def pad(values: list[int], neutral: int = 0) -> torch.Tensor:
    """A value for each row of the bucket [B] int32, host: the neutral one behind the batch."""
    return torch.tensor(values + [neutral] * (BUCKET - len(values)), dtype=torch.int32)
