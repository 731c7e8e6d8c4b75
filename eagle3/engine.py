"""A small engine: prompts in, tokens out, by the speculative step; with or without drafts, graphs and batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch

from eagle3.accept import Acceptor, accept_greedy
from eagle3.acceptance import Acceptance
from eagle3.batch import Batch
from eagle3.errors import CreationRefused, OutOfPages
from eagle3.graphs import StepGraphs
from eagle3.head import DraftHead
from eagle3.kv_manager import Row, Scheduler
from eagle3.m3.attention import EagerAttention
from eagle3.m3.pair_files import check_pair
from eagle3.m3.target import Target
from eagle3.pools import allocate_pools, engine_config
from eagle3.prompt import PromptReader
from eagle3.refusals import check_creation
from eagle3.routing import Buckets, route_step
from eagle3.step import SpeculativeStep
from eagle3.text import Generated, Text
from graphcheck.contract import refuse_while_capturing
from msa import EagerBatch
from msa.paging import FlatTable


class Engine:
    """Generates greedily. Requests beyond the largest batch wait; steps are read before the next one is launched.

    Args:
        target: the model.
        head: drafts for it; None without speculation.
        draft_len: L; 0 without speculation.
        max_batch: most requests in a step.
        max_seq_len: longest request, prompt and generated tokens together.
        graphs: whether steps are replayed; captured here, one for each size in ``batches``.
        batches: batch sizes with a graph, ``max_batch`` among them; that alone by default.
        allow_eager: whether a batch whose graphs could not be captured may run eagerly; `Generated.replayed` shows it.
        backend: "msa" plans each step on the device, "reference" the target's attention on the host, eagerly.
        kernels: of the attention, "portable" or "triton".
        chunk: most tokens of a prompt that are read at once.
        accept: of the step, see `SpeculativeStep`; with another rule than the greedy one the text is not the target's.

    Raises:
        CheckpointMismatch: the head is not for this target.
        CreationRefused: a combination that is not served; every objection is named.
        BucketsNotCaptured: a graph was asked for and cannot be captured.
    """

    def __init__(
        self,
        target: Target,
        head: DraftHead | None = None,
        *,
        draft_len: int = 0,
        max_batch: int = 1,
        max_seq_len: int = 1024,
        graphs: bool = False,
        batches: Sequence[int] = (),
        allow_eager: bool = False,
        backend: str = "msa",
        kernels: str = "portable",
        chunk: int = 256,
        accept: Acceptor = accept_greedy,
    ) -> None:
        refuse_while_capturing("engine")
        if max_batch < 1 or chunk < 1 or (batches and max(batches) != max_batch):
            raise CreationRefused(
                f"max_batch {max_batch}, chunk {chunk} and graphs for batches {list(batches)}; expected at least 1 of the "
                "first two, and the largest of the last to be max_batch"
            )
        self.target, self.head = target, head if draft_len else None
        self.draft_len, self.max_batch, self.max_seq_len = draft_len, max_batch, max_seq_len
        self.backend, self.kernels, self.chunk, self.accept = backend, kernels, chunk, accept
        self.device = target.embed.device
        if self.head is not None:
            check_pair(target, self.head)
        config = engine_config(
            target,
            self.head,
            draft_len=draft_len,
            max_batch=max_batch,
            max_seq_len=max_seq_len,
            graphs=graphs,
            backend=backend,
            kernels=kernels,
        )
        check_creation(config)
        if graphs and self.device.type != "cuda":
            raise CreationRefused(f"CUDA graphs of a target on {self.device}; move it to a GPU, or pass graphs=False")
        self.caches, self.managers = allocate_pools(target, self.head, config)
        self.geometry = self.caches.geometry
        self.reader = PromptReader(target, self.head, self.caches, draft_len, kernels=kernels)
        self.steps: dict[int, SpeculativeStep] = {}
        self.buckets = Buckets(batches or [max_batch], [draft_len], allow_eager=allow_eager) if graphs else None
        self.graphs: StepGraphs | None = None
        if self.buckets is not None:
            self.graphs = StepGraphs({key: self._step(key.batch) for key in self.buckets.keys}, self.buckets)
        self.acceptance = Acceptance()
        self.texts: dict[int, Text] = {}
        self.batch = Batch()
        self.ran = self.replayed = 0

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        *,
        stop: Collection[int] = (),
        progress: Callable[[Engine], None] | None = None,
    ) -> Generated:
        """Up to ``new_tokens`` tokens behind each prompt, fewer where a token of ``stop`` is among them (it is the last).

        Args:
            prompts: tokens, host, at least one each.
            new_tokens: at least 1.
            stop: tokens that end a request.
            progress: called after each step, with this engine.

        Raises:
            CreationRefused: a prompt is empty, or too long for the engine.
        """
        for number, prompt in enumerate(prompts):
            if not prompt or new_tokens < 1 or len(prompt) + new_tokens > self.max_seq_len:
                raise CreationRefused(
                    f"prompt {number} has {len(prompt)} tokens and {new_tokens} are to follow; expected at least one of "
                    f"each and {self.max_seq_len} together, or an engine with a larger max_seq_len"
                )
        # Nothing of an earlier call counts: its requests had the same numbers.
        self.batch, self.acceptance, self.ran, self.replayed = Batch(), Acceptance(), 0, 0
        self.texts = {number: Text(list(prompt), new_tokens) for number, prompt in enumerate(prompts)}
        scheduler = Scheduler(self.managers, self.draft_len, self.max_batch, self.chunk)
        for number, text in self.texts.items():
            scheduler.submit(number, len(text.prompt), new_tokens)
        try:
            while scheduler.requests:
                self._step_of(scheduler, stop)
                if progress is not None:
                    progress(self)
        finally:
            # After an exception the pages of those that were still being served must not be lost.
            for request in scheduler.requests:
                self.managers.free_resources(request)
        return Generated([text.tokens for text in self.texts.values()], self.acceptance, self.ran, self.replayed)

    def _step_of(self, scheduler: Scheduler, stop: Collection[int]) -> None:
        """Every request that has a place in the batch is one step further."""
        rows = scheduler.schedule()
        if not rows:
            raise OutOfPages("no request can take its next step; the pools are too small for one of them")
        scheduler.launch(rows)
        counts = [self._read(row) for row in rows if row.context]
        counts += self._verify([row.request for row in rows if not row.context])
        scheduler.settle(counts, [row.request for row in rows if self.texts[row.request].cut(stop)])

    def _read(self, row: Row) -> int:
        """One chunk of a prompt is read; the tokens that this generates, at least counted as 1."""
        text, start = self.texts[row.request], self.texts[row.request].past
        text.past = start + row.tokens
        pages = self._pages([row.request])
        draft_pages = self._draft_pages([row.request])
        first = self.reader.read(text.prompt, start, text.past, pages[0], draft_pages[0])
        if first is not None:
            text.tokens.append(first[0])
            text.drafts = first[1]
        return 1

    def _verify(self, requests: list[int]) -> list[int]:
        """One step of requests that generate; tokens kept of each."""
        if not requests:
            return []
        qo_len = 1 + self.draft_len
        route = route_step(requests, [qo_len] * len(requests), [False] * len(requests), self.buckets, self.geometry)
        step = self._step(len(route.rows))
        self.batch.stage(step, requests, self.texts, self._pages(requests), self._draft_pages(requests))
        if route.bucket is not None and self.graphs is not None:
            self.graphs.replay(route.bucket)
            self.replayed += 1
        else:
            step.run(self._reference(requests) if self.backend == "reference" else None)
        self.ran += 1
        # One read of everything that the host wants to know.
        answer = torch.cat([step.lengths.count.unsqueeze(1), step.tokens], 1)[: len(requests)].tolist()
        counts = [row[0] for row in answer]
        for request, count, row in zip(requests, counts, answer, strict=True):
            text = self.texts[request]
            text.tokens += row[1 : 1 + count]
            text.past += count
        self.acceptance.add(counts, self.draft_len)
        return counts

    def _reference(self, requests: list[int]) -> EagerAttention:
        """The target's attention of a step, planned on the host from true lengths."""
        qo_len = 1 + self.draft_len
        kv_lens = [self.texts[request].past + qo_len for request in requests]
        table = FlatTable.stage(self._pages(requests), kv_lens, self.geometry, self.device)
        qo_lens = [qo_len] * len(requests)
        batch = EagerBatch(self.geometry, qo_lens, kv_lens, table, self.device, kernels=self.kernels)
        return EagerAttention(batch, self.caches.target)

    def _step(self, batch: int) -> SpeculativeStep:
        """The step of a batch size; the eager engine makes them as they are needed."""
        if batch not in self.steps:
            models = (self.target, self.head, self.caches)
            self.steps[batch] = SpeculativeStep(
                *models, batch, self.draft_len, kernels=self.kernels, accept=self.accept
            )
        return self.steps[batch]

    def _pages(self, requests: Sequence[int]) -> list[list[int]]:
        return self.managers.target.rows(requests)

    def _draft_pages(self, requests: Sequence[int]) -> list[list[int]]:
        draft = self.managers.draft
        return [[] for _ in requests] if draft is None else draft.rows(requests)
