"""The whole speculative step: the target verifies, drafts are accepted, and the next ones are drafted; one graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from eagle3.accept import PADDING_TOKEN
from eagle3.component.models import BUCKET, VOCABULARY
from eagle3.component.speculation import Speculation, derived, pad, tensors_of
from eagle3.lengths import extra_kv_tokens
from eagle3.m3.attention import EagerAttention
from eagle3.step import SpeculativeStep
from eagle3.warmup import saved
from graphcheck import Buffers, Case
from msa import EagerBatch, PagedCache

LAYERS = 3
CACHES = tuple(
    f"{name}_{layer}" for layer in range(LAYERS) for name in ("k", "v", "index_k") if layer or name != "index_k"
) + ("draft_k", "draft_v")


class Step(Speculation):
    """Verify, accept and draft in one graph; eager runs the exact batch, the target's attention planned on the host."""

    shared = CACHES
    advanced = ("inputs", "past")
    restored = ("inputs", "past")
    prefixes = ("verify", "ladder", "single")
    work = ("kv_lens", "positions", "draft_positions", "real", *derived(*prefixes))

    def allocate(self, device: torch.device) -> Buffers:
        self.models = self.build(device)
        self.steps = {name: self.new_step(BUCKET, draft_len) for name, draft_len in self.DRAFT_LENS.items()}
        self.exact = {
            (name, size): self.new_step(size, draft_len)
            for name, draft_len in self.DRAFT_LENS.items()
            for size in range(1, BUCKET + 1)
        }
        for step in (*self.exact.values(), *self.steps.values()):
            step.prepare()
        self.active = next(iter(self.steps))
        caches = self.named_caches()
        return Buffers(
            **caches,
            **{f"spill_{name}": tensor[-1:] for name, tensor in caches.items()},
            **{f"{name}_{key}": tensor for key, step in self.steps.items() for name, tensor in step.tensors().items()},
        )

    def new_step(self, batch: int, draft_len: int) -> SpeculativeStep:
        """A step over this component's models and caches."""
        models = self.models
        return SpeculativeStep(models.target, models.head, models.caches, batch, draft_len, kernels=models.kernels)

    def all_caches(self) -> list[PagedCache]:
        """The caches of the target's layers, and behind them the head's."""
        assert self.models.caches.draft is not None
        return [*self.models.caches.target, self.models.caches.draft]

    def named_caches(self) -> dict[str, torch.Tensor]:
        """Every tensor of every cache by its buffer's name."""
        *layers, draft = self.all_caches()
        named = {
            f"{name}_{layer}": held for layer, cache in enumerate(layers) for name, held in tensors_of(cache).items()
        }
        return named | {f"draft_{name}": held for name, held in tensors_of(draft).items()}

    def stage(self, buffers: Buffers, case: Case) -> None:
        self.active = case.variant
        for name, step in self.steps.items():
            if name != case.variant:
                self.clear(step)
        step, draft_len = self.steps[case.variant], self.draft_len(case)
        verified, drafted = self.scene(case), self.scene(case, extra_kv_tokens(draft_len))
        for part, cache in enumerate(self.all_caches()):
            self.fill(cache, drafted if part == LAYERS else verified, case, 3 * part)
        # A model takes legal ids only, also for rows behind the batch.
        step.inputs.copy_(self.tokens(case) % VOCABULARY)
        step.page_table.copy_(verified.padded())
        self.stage_lengths(step.lengths, case)
        if step.loop is not None:
            step.loop.page_table.copy_(self.draft_table(case))

    def clear(self, step: SpeculativeStep) -> None:
        """Leave nothing of an earlier case in the inputs of a variant that this case does not use."""
        step.inputs.fill_(PADDING_TOKEN)
        step.page_table.fill_(-1)
        step.lengths.stage([])
        if step.loop is not None:
            step.loop.page_table.fill_(-1)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        step = self.steps[self.active]
        step.run()
        return self.outputs(step)

    def outputs(self, step: SpeculativeStep) -> Mapping[str, torch.Tensor]:
        """What a step gives out."""
        assert step.loop is not None
        return {"tokens": step.tokens, "count": step.lengths.count, "drafts": step.loop.drafts}

    @contextmanager
    def around_warmup(self, buffers: Buffers) -> Iterator[None]:
        with saved(self.steps[self.active].advanced()):
            yield

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        bucket, exact, size = self.steps[case.variant], self.exact[case.variant, case.size], case.size
        assert bucket.loop is not None and exact.loop is not None
        exact.inputs.copy_(bucket.inputs[:size])
        exact.loop.page_table.copy_(self.draft_table(case)[:size])
        exact.lengths.stage(self.past(case))
        exact.run(self.planned(case))
        bucket.inputs[:size].copy_(exact.inputs)
        bucket.inputs[size:].fill_(PADDING_TOKEN)
        bucket.lengths.past[:size].copy_(exact.lengths.past)
        outputs = self.outputs(bucket)
        for name, mine in self.outputs(exact).items():
            outputs[name][:size].copy_(mine)
            outputs[name][size:].fill_(0 if name == "count" else PADDING_TOKEN)
        return outputs

    def planned(self, case: Case) -> EagerAttention:
        """The target's attention, planned on the host from the true lengths of the exact batch."""
        scene = self.scene(case)
        device = self.models.target.embed.device
        batch = EagerBatch(
            scene.geometry,
            [scene.qo_len] * case.size,
            scene.kv_lens,
            scene.flat(device),
            device,
            kernels=self.models.kernels,
        )
        return EagerAttention(batch, self.models.caches.target)

    def written(self, buffers: Buffers, case: Case) -> Mapping[str, Any]:
        verified = self.slots(case, [1 + self.draft_len(case)] * case.size)
        drafted = self.drafted_slots(case)
        return self.at_rest(case) | {
            name: (drafted if name.startswith("draft") else verified).to(buffers[name].device) for name in CACHES
        }

    def reference(
        self, before: Mapping[str, torch.Tensor], case: Case, outputs: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        kept, variant = self.kept(case), case.variant
        told = (before[f"inputs_{variant}"].cpu() + 1) % VOCABULARY
        told[case.size :] = PADDING_TOKEN
        count = pad(kept)
        return {"tokens": told, "count": count, f"past_{variant}": pad(self.past(case)) + count}
