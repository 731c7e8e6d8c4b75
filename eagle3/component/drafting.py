"""The head alone, and the draft loop with its cache."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from hypothesis.strategies import SearchStrategy

from eagle3.accept import PADDING_TOKEN
from eagle3.component.models import BUCKET, HEAD
from eagle3.component.speculation import Speculation, derived, pad, tensors_of
from eagle3.lengths import DraftLengths
from eagle3.loop import DraftLoop
from eagle3.warmup import saved
from graphcheck import Buffers, Case, contents
from msa import DecodeDriver, EagerBatch, PagedCache

CACHES = ("draft_k", "draft_v")
CAPTURED = HEAD.num_captures * HEAD.target_hidden_size


class Drafting(Speculation):
    """What the head's components share: its cache, and captured hidden states and tokens of a verify step."""

    shared = CACHES

    def fields(self) -> dict[str, SearchStrategy[Any]]:
        return {**super().fields(), "x": contents(("normal", "ramp"))}

    @property
    def cache(self) -> PagedCache:
        """The head's cache."""
        assert self.models.caches.draft is not None
        return self.models.caches.draft

    def named_caches(self) -> dict[str, torch.Tensor]:
        """The cache's tensors by their buffers' names, and the page that takes the writes of padding rows."""
        held = {f"draft_{name}": tensor for name, tensor in tensors_of(self.cache).items()}
        return held | {f"spill_{name}": tensor[-1:] for name, tensor in held.items()}

    def inputs(self, device: torch.device) -> dict[str, torch.Tensor]:
        """Tokens [B, 1 + L] and captured hidden states [T, C * Ht] of each variant."""
        named = {}
        for name, draft_len in self.DRAFT_LENS.items():
            named[f"tokens_{name}"] = torch.empty(BUCKET, 1 + draft_len, dtype=torch.int64, device=device)
            named[f"captured_{name}"] = torch.empty(BUCKET * (1 + draft_len), CAPTURED, device=device)
        return named

    def stage_inputs(self, buffers: Buffers, case: Case) -> None:
        """Tokens and hidden states of the case, harmful values behind its batch, and the cache's contents."""
        for name in self.DRAFT_LENS:
            buffers[f"tokens_{name}"].fill_(PADDING_TOKEN)
            buffers[f"captured_{name}"].zero_()
        # A step's tokens are shifted by one already: row t holds the token behind position t.
        buffers[f"tokens_{case.variant}"].copy_(self.tokens(case))
        captured = buffers[f"captured_{case.variant}"]
        case.x.fill(captured)
        captured[case.size * (1 + self.draft_len(case)) :].fill_(math.nan)
        self.fill(self.cache, self.scene(case), case, 0)


class Draft(Drafting):
    """The head over a verify step's tokens: fusion, layer and logits; eager is planned on the host.

    Rows behind the batch come out as zeros.
    """

    prefixes = ("verify",)
    work = derived(*prefixes)

    def allocate(self, device: torch.device) -> Buffers:
        self.models = self.build(device)
        self.active = next(iter(self.DRAFT_LENS))
        self.lengths, self.drivers = {}, {}
        buffers = self.named_caches() | self.inputs(device)
        assert self.models.caches.draft_geometry is not None
        for name, draft_len in self.DRAFT_LENS.items():
            lengths = self.lengths[name] = DraftLengths(BUCKET, draft_len, device)
            driver = self.drivers[name] = DecodeDriver(
                self.models.caches.draft_geometry,
                BUCKET,
                1 + draft_len,
                device,
                kv_lens=lengths.kv_lens,
                kernels=self.models.kernels,
            )
            held = {f"verify_{key}": tensor for key, tensor in driver.tensors().items()}
            held["kv_lens"], held["positions"] = held.pop("verify_kv_lens"), lengths.positions
            rows = BUCKET * (1 + draft_len)
            held["hidden"] = torch.empty(rows, HEAD.hidden_size, device=device)
            held["logits"] = torch.empty(rows, HEAD.draft_vocab_size, device=device)
            held["ids"] = torch.empty(rows, dtype=torch.int64, device=device)
            buffers |= {f"{key}_{name}": tensor for key, tensor in held.items()}
        made = Buffers(**buffers)
        if self.chosen == "triton":
            # Compiles every kernel before a capture that no warm-up precedes; at rest only the dummy page is written.
            for name in self.DRAFT_LENS:
                self.active = name
                made[f"captured_{name}"].zero_()
                self.run(made)
        return made

    def stage(self, buffers: Buffers, case: Case) -> None:
        self.active = case.variant
        for name, lengths in self.lengths.items():
            lengths.stage([])
            self.drivers[name].page_table.fill_(-1)
        self.stage_inputs(buffers, case)
        self.lengths[case.variant].stage(self.past(case))
        self.drivers[case.variant].page_table.copy_(self.scene(case).padded())

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        name = self.active
        driver, lengths = self.drivers[name], self.lengths[name]
        driver.plan()
        hidden = self.models.head.layer(
            buffers[f"tokens_{name}"].view(-1),
            self.models.head.fuse(buffers[f"captured_{name}"]),
            lengths.positions,
            partial(driver.dense_layer, cache=self.cache),
        )
        return self.give(buffers, name, hidden, driver.ladder.extents > 0)

    def give(
        self, buffers: Buffers, variant: str, hidden: torch.Tensor, real: torch.Tensor
    ) -> Mapping[str, torch.Tensor]:
        """The outputs of the leading rows, zero where a row is not real, and zeros behind them."""
        logits = self.models.head.logits(hidden)
        answers = {"hidden": hidden, "logits": logits, "ids": self.models.head.to_target(logits.argmax(1))}
        outputs = {name: buffers[f"{name}_{variant}"] for name in answers}
        for name, rows in answers.items():
            mask = real.unsqueeze(1) if rows.dim() == 2 else real
            outputs[name][: rows.shape[0]].copy_(torch.where(mask, rows, 0))
            outputs[name][rows.shape[0] :].zero_()
        return outputs

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        scene, name = self.scene(case), case.variant
        device = buffers[f"hidden_{name}"].device
        planned = EagerBatch(
            self.drivers[name].geometry,
            [scene.qo_len] * case.size,
            scene.kv_lens,
            scene.flat(device),
            device,
            kernels=self.models.kernels,
        )
        rows = scene.real_rows
        hidden = self.models.head.layer(
            buffers[f"tokens_{name}"].view(-1)[:rows],
            self.models.head.fuse(buffers[f"captured_{name}"][:rows]),
            self.lengths[name].positions[:rows],
            partial(planned.dense_layer, cache=self.cache),
        )
        return self.give(buffers, name, hidden, torch.ones(rows, dtype=torch.bool, device=device))

    def written(self, buffers: Buffers, case: Case) -> Mapping[str, Any]:
        fresh = self.slots(case, [1 + self.draft_len(case)] * case.size)
        return {name: fresh.to(buffers[name].device) for name in CACHES}


class Loop(Drafting):
    """The draft loop behind an acceptance; eager is the exact batch, with lengths of its own.

    The loop moves the lengths that the verify step was staged with, so it puts them back while it is warmed up.
    """

    advanced = ("past", "kv_lens")
    restored = ("past", "kv_lens")
    prefixes = ("ladder", "single")
    work = ("draft_positions", *derived(*prefixes))

    def allocate(self, device: torch.device) -> Buffers:
        self.models = self.build(device)
        self.active = next(iter(self.DRAFT_LENS))
        self.loops = {name: self.new_loop(BUCKET, draft_len, device) for name, draft_len in self.DRAFT_LENS.items()}
        self.exact = {
            (name, size): self.new_loop(size, draft_len, device)
            for name, draft_len in self.DRAFT_LENS.items()
            for size in range(1, BUCKET + 1)
        }
        buffers = self.named_caches() | self.inputs(device)
        for (name, size), loop in self.exact.items():
            rows = size * (1 + self.DRAFT_LENS[name])
            loop.prepare(buffers[f"tokens_{name}"][:size], buffers[f"captured_{name}"][:rows])
        for name, loop in self.loops.items():
            loop.prepare(buffers[f"tokens_{name}"], buffers[f"captured_{name}"])
            held = {**loop.tensors(), **loop.lengths.tensors()}
            buffers |= {f"{key}_{name}": tensor for key, tensor in held.items()}
        return Buffers(**buffers)

    def new_loop(self, batch: int, draft_len: int, device: torch.device) -> DraftLoop:
        """A loop over this component's head and cache."""
        geometry = self.models.caches.draft_geometry
        assert geometry is not None
        lengths = DraftLengths(batch, draft_len, device)
        return DraftLoop(self.models.head, geometry, self.cache, lengths, kernels=self.models.kernels)

    def stage(self, buffers: Buffers, case: Case) -> None:
        self.active = case.variant
        for loop in self.loops.values():
            loop.lengths.stage([])
            loop.lengths.count.zero_()
            loop.page_table.fill_(-1)
        self.stage_inputs(buffers, case)
        loop = self.loops[case.variant]
        loop.lengths.stage(self.past(case))
        loop.lengths.count.copy_(pad(self.kept(case)))
        loop.page_table.copy_(self.draft_table(case))

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        name = self.active
        return self.draft(self.loops[name], buffers[f"tokens_{name}"], buffers[f"captured_{name}"])

    def draft(self, loop: DraftLoop, tokens: torch.Tensor, captured: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """The region: behind the acceptance, L drafts of each request."""
        loop.lengths.after_accept()
        return {"drafts": loop.run(tokens, captured)}

    @contextmanager
    def around_warmup(self, buffers: Buffers) -> Iterator[None]:
        with saved(self.loops[self.active].lengths.advanced()):
            yield

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        name, size = case.variant, case.size
        bucket, exact = self.loops[name], self.exact[name, size]
        exact.lengths.stage(self.past(case))
        exact.lengths.count.copy_(bucket.lengths.count[:size])
        exact.page_table.copy_(self.draft_table(case)[:size])
        rows = size * (1 + self.draft_len(case))
        mine = self.draft(exact, buffers[f"tokens_{name}"][:size], buffers[f"captured_{name}"][:rows])
        bucket.drafts[:size].copy_(mine["drafts"])
        bucket.drafts[size:].fill_(PADDING_TOKEN)
        for held, own in ((bucket.lengths.past, exact.lengths.past), (bucket.lengths.kv_lens, exact.lengths.kv_lens)):
            held.zero_()
            held[:size].copy_(own)
        return {"drafts": bucket.drafts}

    def written(self, buffers: Buffers, case: Case) -> Mapping[str, Any]:
        drafted = self.drafted_slots(case)
        return self.at_rest(case) | {name: drafted.to(buffers[name].device) for name in CACHES}

    def reference(
        self, before: Mapping[str, torch.Tensor], case: Case, outputs: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        kept = pad(self.kept(case))
        past = pad(self.past(case)) + kept
        steps = max(self.draft_len(case) - 1, 0)
        # With one draft no step follows the first, and the lengths stay those of the verify step.
        moved = past + (past > 0) * steps if steps else before[f"kv_lens_{case.variant}"].cpu()
        return {f"past_{case.variant}": past, f"kv_lens_{case.variant}": moved.to(torch.int32)}
