"""Reading prompts: target and head take a chunk of one request eagerly, and the first drafts follow its last token."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from eagle3.head import DraftHead, paired_tokens
from eagle3.lengths import DraftLengths
from eagle3.loop import DraftLoop
from eagle3.m3.attention import EagerAttention
from eagle3.m3.target import Target
from eagle3.step import Caches
from msa import EagerBatch, Geometry, pad_rows
from msa.paging import FlatTable


class PromptReader:
    """Fills the caches with a prompt, chunk by chunk, and drafts behind it.

    Args:
        target: the model.
        head: drafts for it; None with L = 0 only.
        caches: of both.
        draft_len: L.
        kernels: of the attention, as in `msa.DecodeDriver`.

    Raises:
        CaptureRefused: the current stream is capturing.
    """

    def __init__(
        self, target: Target, head: DraftHead | None, caches: Caches, draft_len: int, *, kernels: str = "portable"
    ) -> None:
        self.target = target
        self.caches = caches
        self.device = target.embed.device
        self.kernels = kernels
        self.lengths = DraftLengths(1, draft_len, self.device)
        self.loop: DraftLoop | None = None
        if head is not None and caches.draft is not None and caches.draft_geometry is not None:
            self.loop = DraftLoop(head, caches.draft_geometry, caches.draft, self.lengths, kernels=kernels)

    def read(
        self, prompt: Sequence[int], start: int, stop: int, pages: Sequence[int], draft_pages: Sequence[int] = ()
    ) -> tuple[int, list[int]] | None:
        """Tokens ``start``..``stop - 1`` of a prompt are in the caches; behind its last one, the first token and its drafts.

        Args:
            prompt: all its tokens, host.
            start, stop: the chunk; everything before it has been read.
            pages, draft_pages: of the request, physical, at least as many as the chunk and the drafts need.

        Returns:
            The target's first token and L drafts behind it, host; None if the prompt goes on.
        """
        chunk = torch.tensor(prompt[start:stop], device=self.device)
        positions = torch.arange(start, stop, dtype=torch.int32, device=self.device)
        batch = self._batch(self.caches.geometry, stop - start, stop, pages)
        hidden, captured = self.target.forward(chunk, positions, EagerAttention(batch, self.caches.target))
        last = hidden.shape[0] - 1
        ends = stop == len(prompt)
        following = int(self.target.logits(hidden[last:]).argmax(1)) if ends else prompt[stop]
        drafts: list[int] = []
        if self.loop is not None:
            row, sampled = (torch.tensor([value], device=self.device) for value in (last, following))
            batch = self._batch(self.loop.geometry, stop - start, stop, draft_pages)
            attend = partial(batch.dense_layer, cache=self.loop.cache)
            head = self.loop.head
            states = head.layer(paired_tokens(chunk, row, sampled), head.fuse(captured), positions, attend)
            if ends:
                drafts = self._drafts(self.loop, states[last:], stop, draft_pages)
        return (following, drafts) if ends else None

    def _drafts(self, loop: DraftLoop, hidden: torch.Tensor, past: int, pages: Sequence[int]) -> list[int]:
        """L drafts behind a prompt of ``past`` tokens, whose last hidden state is ``hidden`` [1, H]."""
        self.lengths.stage([past])
        loop.page_table.copy_(page_rows([pages], loop.geometry, 1))
        return [int(token) for token in loop.chain(hidden)[0].tolist()]

    def _batch(self, geometry: Geometry, tokens: int, stop: int, pages: Sequence[int]) -> EagerBatch:
        table = FlatTable.stage([pages], [stop], geometry, self.device)
        return EagerBatch(geometry, [tokens], [stop], table, self.device, kernels=self.kernels)


def page_rows(pages: Sequence[Sequence[int]], geometry: Geometry, batch: int) -> torch.Tensor:
    """The page table int32 [batch, W], host, of requests that may write to all of their pages."""
    # The last page of the longest request may reach beyond the longest request.
    tokens = [min(len(row) * geometry.page_size, geometry.capacity) for row in pages]
    return pad_rows(pages, tokens, geometry, batch)
