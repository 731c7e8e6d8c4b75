"""Acceptance by itself: greedy, and by rejection sampling with the uniforms passed in."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from hypothesis.strategies import SearchStrategy

from eagle3.accept import PADDING_TOKEN, accept_greedy, accept_rejection
from eagle3.component.models import BUCKET, VOCABULARY
from eagle3.component.speculation import Speculation, pad
from graphcheck import Buffers, Case, batch, case, contents, integers, lengths

RESULTS = ("tokens", "count", "sampled", "sampled_count")


class Accept(Speculation):
    """Both ways of acceptance over the same drafts; eager takes the exact batch."""

    def fields(self) -> dict[str, SearchStrategy]:
        fields = super().fields()
        most = max(self.DRAFT_LENS.values())
        return {
            **{name: fields[name] for name in ("variant", "seed")},
            "size": batch(BUCKET),
            "kept": lengths(BUCKET, 1, 1 + most),
            "q": contents(("normal", "ties", "zeros")),
            "p": contents(("normal", "ties", "zeros")),
            "draw": integers(0, 2**16 - 1),
        }

    def cases(self) -> SearchStrategy[Case]:
        return case(**self.fields())

    def allocate(self, device: torch.device) -> Buffers:
        self.active = next(iter(self.DRAFT_LENS))
        buffers = {}
        for name, draft_len in self.DRAFT_LENS.items():
            qo_len = 1 + draft_len
            for part in ("target", "tokens", "sampled"):
                buffers[f"{part}_{name}"] = torch.empty(BUCKET, qo_len, dtype=torch.int64, device=device)
            buffers[f"draft_{name}"] = torch.empty(BUCKET, draft_len, dtype=torch.int64, device=device)
            buffers[f"q_{name}"] = torch.empty(BUCKET, draft_len, VOCABULARY, device=device)
            buffers[f"p_{name}"] = torch.empty(BUCKET, qo_len, VOCABULARY, device=device)
            buffers[f"uniforms_{name}"] = torch.empty(BUCKET, qo_len, device=device)
            for part in ("kv_lens", "count", "sampled_count"):
                buffers[f"{part}_{name}"] = torch.empty(BUCKET, dtype=torch.int32, device=device)
        return Buffers(**buffers)

    def stage(self, buffers: Buffers, case: Case) -> None:
        self.active = case.variant
        for name in self.DRAFT_LENS:
            held = self.held(buffers, name)
            held["kv_lens"].zero_()
            for part in ("draft", "target"):
                held[part].fill_(PADDING_TOKEN)
            for part in ("q", "p", "uniforms"):
                held[part].zero_()
        held, draft_len = self.held(buffers, case.variant), self.draft_len(case)
        inputs = self.tokens(case)
        held["draft"].copy_(inputs[:, 1:])
        # Behind the first wrong draft the target goes on from that draft: each token's successor.
        held["target"].copy_((inputs + 1) % VOCABULARY)
        held["kv_lens"].copy_(pad([1 + draft_len + request for request in range(case.size)]))
        for part, drawn in (("q", case.q), ("p", case.p)):
            drawn.fill(held[part])
            held[part].copy_(held[part].softmax(-1))
            held[part][case.size :].fill_(float("nan"))
        steps = torch.arange(BUCKET * (1 + draft_len)).view(BUCKET, -1)
        held["uniforms"].copy_((case.draw * 0.6180339887 + steps * 0.7548776662) % 1.0)

    def held(self, buffers: Buffers, variant: str) -> dict[str, torch.Tensor]:
        """The buffers of one variant by their part."""
        parts = ("target", "draft", "q", "p", "uniforms", "kv_lens", *RESULTS)
        return {part: buffers[f"{part}_{variant}"] for part in parts}

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        held = self.held(buffers, self.active)
        self.accept(held)
        return {part: held[part] for part in RESULTS}

    def accept(self, held: Mapping[str, torch.Tensor]) -> None:
        """Both acceptances of these rows."""
        draft, kv_lens = held["draft"], held["kv_lens"]
        accept_greedy(draft, held["target"], kv_lens, held["tokens"], held["count"])
        accept_rejection(draft, held["q"], held["p"], held["uniforms"], kv_lens, held["sampled"], held["sampled_count"])

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        held = self.held(buffers, case.variant)
        self.accept({part: tensor[: case.size] for part, tensor in held.items()})
        for part in RESULTS:
            held[part][case.size :].fill_(0 if part.endswith("count") else PADDING_TOKEN)
        return {part: held[part] for part in RESULTS}

    def reference(
        self, before: Mapping[str, torch.Tensor], case: Case, outputs: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        told = before[f"target_{case.variant}"].cpu().clone()
        told[case.size :] = PADDING_TOKEN
        return {"tokens": told, "count": pad(self.kept(case))}
