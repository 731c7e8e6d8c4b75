"""Overlap: lengths staged as if every draft were kept, corrected inside the graph, and planned from there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from hypothesis.strategies import SearchStrategy

from eagle3.component.models import BUCKET, PAGES, TARGET
from eagle3.component.speculation import Speculation, derived, pad
from eagle3.lengths import DraftLengths
from eagle3.mirror import Staging
from eagle3.overlap import OverlapOffsets
from graphcheck import Buffers, Case
from msa import DecodeDriver


class Overlap(Speculation):
    """A step launched before the previous one is read; eager is staged with the true past, and nothing is corrected.

    A request in an odd row by its number was not in the previous batch: its past is known, and it is not corrected.
    """

    advanced = ("past",)
    prefixes = ("verify",)
    work = tuple(
        name
        for name in ("draft_positions", "real", *derived(*prefixes), "len_offsets", "position_offsets")
        if name not in ("verify_slots", "verify_valid_pages")
    )

    def fields(self) -> dict[str, SearchStrategy[Any]]:
        fields = super().fields()
        return {name: fields[name] for name in ("variant", "size", "kv_lens", "kept", "seed")}

    def allocate(self, device: torch.device) -> Buffers:
        geometry = TARGET.geometry(max_batch=BUCKET, num_pages=BUCKET * PAGES, dtype=torch.float32)
        kernels = self.choose(device)
        self.lengths, self.offsets, self.drivers, self.counts = {}, {}, {}, {}
        buffers: dict[str, torch.Tensor] = {}
        for name, draft_len in self.DRAFT_LENS.items():
            lengths = self.lengths[name] = DraftLengths(BUCKET, draft_len, device)
            offsets = self.offsets[name] = OverlapOffsets(BUCKET, draft_len, device)
            driver = self.drivers[name] = DecodeDriver(
                geometry, BUCKET, 1 + draft_len, device, kv_lens=lengths.kv_lens, kernels=kernels
            )
            if kernels == "triton":
                # Compiles the kernel before a capture that no warm-up precedes.
                driver.plan()
            counts = self.counts[name] = torch.zeros(BUCKET, dtype=torch.int32, device=device)
            held = {f"verify_{key}": tensor for key, tensor in driver.tensors().items()}
            del held["verify_kv_lens"]
            held |= {"counts": counts, **lengths.tensors(), **offsets.tensors()}
            buffers |= {f"{key}_{name}": tensor for key, tensor in held.items()}
        self.active = next(iter(self.DRAFT_LENS))
        return Buffers(**buffers)

    def known(self, case: Case) -> list[bool]:
        """Of each real request, whether the host knows its past already."""
        return [bool((case.seed >> request) & 1) for request in range(case.size)]

    def stage(self, buffers: Buffers, case: Case) -> None:
        self.active = case.variant
        for name in self.DRAFT_LENS:
            self.offsets[name].stage(Staging((), (), ()))
            self.lengths[name].stage([])
            self.counts[name].zero_()
        qo_len = 1 + self.draft_len(case)
        known, kept, past = self.known(case), self.kept(case), self.past(case)
        # The rows of the previous batch stood in the opposite order.
        previous = [-1 if sure else BUCKET - 1 - row for row, sure in enumerate(known)]
        committed = [
            tokens if sure else max(tokens - count, 1) for tokens, sure, count in zip(past, known, kept, strict=True)
        ]
        self.counts[case.variant].copy_(torch.flip(pad(kept), (0,)))
        assumed = [0 if sure else qo_len for sure in known]
        self.offsets[case.variant].stage(Staging(tuple(committed), tuple(previous), tuple(assumed)))
        self.drivers[case.variant].page_table.copy_(torch.arange(BUCKET * PAGES, dtype=torch.int32).view(BUCKET, PAGES))

    def true_past(self, case: Case) -> list[int]:
        """Tokens with valid KV of each real request, once the previous step is read."""
        known, kept, past = self.known(case), self.kept(case), self.past(case)
        return [
            tokens if sure else max(tokens - count, 1) + count
            for tokens, sure, count in zip(past, known, kept, strict=True)
        ]

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        self.correct(self.active)
        self.drivers[self.active].plan()
        return self.outputs(self.active)

    def correct(self, variant: str) -> None:
        """The variant's lengths are the true ones."""
        self.offsets[variant].gather(self.counts[variant])
        self.offsets[variant].correct(self.lengths[variant])

    def outputs(self, variant: str) -> Mapping[str, torch.Tensor]:
        """Lengths, positions and what attention is planned from."""
        lengths, ladder = self.lengths[variant], self.drivers[variant].ladder
        return {
            "kv_lens": lengths.kv_lens,
            "positions": lengths.positions,
            "slots": ladder.slots,
            "valid_pages": ladder.valid_pages,
        }

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        self.lengths[case.variant].stage(self.true_past(case))
        self.drivers[case.variant].plan()
        return self.outputs(case.variant)

    def written(self, buffers: Buffers, case: Case) -> Mapping[str, Any]:
        return self.at_rest(case)

    def reference(
        self, before: Mapping[str, torch.Tensor], case: Case, outputs: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        past, qo_len = pad(self.true_past(case)), 1 + self.draft_len(case)
        real = (past > 0).to(torch.int32)
        positions = past.unsqueeze(1) + real.unsqueeze(1) * torch.arange(qo_len, dtype=torch.int32)
        return {f"past_{case.variant}": past, "kv_lens": past + real * qo_len, "positions": positions.view(-1)}
