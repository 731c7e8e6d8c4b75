"""One speculative step, captured whole: the target verifies, drafts are accepted, and the next ones are drafted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from eagle3.accept import PADDING_TOKEN, Acceptor, accept_greedy
from eagle3.errors import CreationRefused
from eagle3.head import DraftHead
from eagle3.lengths import DraftLengths
from eagle3.loop import DraftLoop
from eagle3.m3.attention import Attention, DriverAttention
from eagle3.m3.target import Target
from eagle3.warmup import saved
from graphcheck.contract import capture_safe, refuse_while_capturing
from msa import DecodeDriver, Geometry, PagedCache


@dataclass(frozen=True)
class Caches:
    """What target and head remember of the requests; the steps of all buckets share it.

    Args:
        geometry: of the target's layers.
        target: one cache for each layer of the target.
        draft_geometry, draft: of the head; None without one.
    """

    geometry: Geometry
    target: Sequence[PagedCache]
    draft_geometry: Geometry | None = None
    draft: PagedCache | None = None


class SpeculativeStep:
    """Verify, accept and draft for a fixed number of requests and drafts.

    The step carries itself on: it leaves the next step's tokens in ``inputs`` and the next lengths in
    ``lengths.past``, so a graph of it can be replayed again and again while the host only reads what was kept and
    keeps the page tables ahead. With L = 0 it is a plain decode step.

    Args:
        target: the model.
        head: drafts for it; None with L = 0 only.
        caches: shared by all buckets.
        batch: B.
        draft_len: L.
        kernels: of the attention, as in `msa.DecodeDriver`.
        accept: says what is kept, inside the captured region; another rule must obey what `accept_greedy` promises of
            shapes, padding rows and counts, and what it keeps need not be the target's text.

    Attributes:
        inputs: [B, 1 + L] int64, device: the last token of each request and its drafts. State.
        lengths: past, kept counts and what follows from them. ``lengths.past`` is state.
        page_table: [B, W] int32, device, of the target's caches. Input.
        loop: the draft loop with the page table of its own cache, which is input too; None without a head.
        tokens: [B, 1 + L] int64, device: the target's tokens; the first ``lengths.count`` are kept.

    Raises:
        CaptureRefused: the current stream is capturing.
        CreationRefused: drafts are asked for without a head, or without a cache for it.
    """

    def __init__(
        self,
        target: Target,
        head: DraftHead | None,
        caches: Caches,
        batch: int,
        draft_len: int,
        *,
        kernels: str = "portable",
        accept: Acceptor = accept_greedy,
    ) -> None:
        refuse_while_capturing("speculative step")
        if head is None and draft_len:
            raise CreationRefused(f"draft_len {draft_len} without a head; pass one, or draft_len=0")
        if draft_len and caches.draft is None:
            raise CreationRefused(f"draft_len {draft_len} without a cache for the head; allocate one, or draft_len=0")
        device = target.embed.device
        self.target = target
        self.accept = accept
        self.lengths = DraftLengths(batch, draft_len, device)
        qo_len = self.lengths.qo_len
        self.driver = DecodeDriver(
            caches.geometry, batch, qo_len, device, kv_lens=self.lengths.kv_lens, kernels=kernels
        )
        self.page_table = self.driver.page_table
        self.attention = DriverAttention(self.driver, caches.target)
        self.loop: DraftLoop | None = None
        if head is not None and caches.draft is not None and caches.draft_geometry is not None:
            self.loop = DraftLoop(head, caches.draft_geometry, caches.draft, self.lengths, kernels=kernels)
        self.inputs = torch.full((batch, qo_len), PADDING_TOKEN, dtype=torch.int64, device=device)
        self.tokens = torch.full_like(self.inputs, PADDING_TOKEN)

    def prepare(self) -> None:
        """Every kernel that `run` launches is compiled and loaded; before the first capture.

        The step runs once on lengths of zero: what it advances is put back, results are overwritten, of the caches only
        the dummy pages are. Portable operators need no preparation.

        Raises:
            CaptureRefused: the current stream is capturing.
        """
        refuse_while_capturing("kernels of a step")
        if self.driver.triton is None and self.target.operators.kernels != "triton":
            return
        with saved({"inputs": self.inputs}), self.lengths.at_rest():
            self.run()

    @capture_safe(static=("self", "attention"))
    def run(self, attention: Attention | None = None) -> None:
        """One step for every request; device only.

        Read live: ``inputs``, ``lengths.past``, the page tables and the caches. Frozen at capture: B and L.

        Args:
            attention: of the target, where it was planned elsewhere: an eager batch with as many rows. By default the
                step's own driver, planned on the device.
        """
        lengths, inputs = self.lengths, self.inputs
        lengths.verify_lens()
        if attention is None:
            self.driver.plan()
            attention = self.attention
        hidden, captured = self.target.forward(inputs.view(-1), lengths.positions, attention)
        chosen = self.target.logits(hidden).argmax(1).view_as(inputs)
        self.accept(inputs[:, 1:], chosen, lengths.kv_lens, self.tokens, lengths.count)
        lengths.after_accept()
        last_kept = (lengths.count.unsqueeze(1) - 1).clamp_(min=0)
        inputs[:, :1].copy_(self.tokens.gather(1, last_kept.to(torch.int64)))
        if self.loop is not None:
            inputs[:, 1:].copy_(self.loop.run(self.tokens, captured))

    def advanced(self) -> dict[str, torch.Tensor]:
        """Every tensor but the caches that a step changes and a later one reads, by name: what a warm-up puts back."""
        return {"inputs": self.inputs, **self.lengths.advanced()}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor but weights and caches that a step uses, by name; their addresses never change."""
        loop = {} if self.loop is None else self.loop.tensors()
        driver = {f"verify_{name}": tensor for name, tensor in self.driver.tensors().items()}
        del driver["verify_kv_lens"]
        return {"inputs": self.inputs, "tokens": self.tokens, **self.lengths.tensors(), **driver, **loop}
