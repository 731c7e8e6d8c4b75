"""A scheduler that grants steps to target and draft caches together, and suspends the youngest request for the oldest."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from eagle3.errors import MirrorMismatch, OutOfPages, RequestExists
from eagle3.kv_manager.pair import CachePair


class Phase(enum.Enum):
    """Where a request is."""

    CONTEXT = "context"
    GENERATION = "generation"
    FINISHED = "finished"


@dataclass
class Request:
    """What the host knows of a request.

    Args:
        id: of the request.
        prompt: tokens of its prompt.
        most: tokens that it may generate.
        launched: tokens of the prompt that are read or in flight.
        generated: tokens that the host has read.
        flying: steps in flight.
    """

    id: int
    prompt: int
    most: int
    launched: int = 0
    generated: int = 0
    flying: int = 0
    phase: Phase = Phase.CONTEXT


@dataclass(frozen=True)
class Row:
    """One request of a batch.

    Args:
        request: id.
        tokens: query tokens: of the prompt's chunk, or 1 + draft_len.
        context: whether it still reads its prompt.
        last_chunk: whether the prompt ends in this step, which gives its first token.
    """

    request: int
    tokens: int
    context: bool = False
    last_chunk: bool = False


class Scheduler:
    """Grants, launches and settles steps.

    A step is `schedule`, `launch`, and `settle` with what it kept. Under overlap the next step is scheduled and
    launched before this one is settled.

    Args:
        caches: of target and draft.
        draft_len: L.
        max_batch: most requests in a batch.
        chunk: most tokens of a prompt in a step.
        overlap: whether a step may be scheduled while another is in flight.
    """

    def __init__(self, caches: CachePair, draft_len: int, max_batch: int, chunk: int, *, overlap: bool = False) -> None:
        self.caches = caches
        self.draft_len = draft_len
        self.max_batch = max_batch
        self.chunk = chunk
        self.overlap = overlap
        self.requests: dict[int, Request] = {}
        self.flying: deque[list[Row]] = deque()
        self.planned: list[Row] = []

    def most_tokens(self, prompt: int, most: int) -> int:
        """Tokens that a request may write at most, without the extra tokens of its manager."""
        steps_ahead = 2 if self.overlap else 1
        return prompt + most + steps_ahead * (1 + self.draft_len)

    def submit(self, request: int, prompt: int, most: int) -> None:
        """The request waits for its first step.

        Raises:
            RequestExists: the id is in use.
            OutOfPages: it would not fit even alone.
        """
        if request in self.requests:
            raise RequestExists(f"request {request} is being served; use another id")
        for manager in self.caches.managers:
            tokens = self.most_tokens(prompt, most) + manager.extra_tokens
            needed = -(-tokens // manager.page_size)
            if needed > manager.pool.num_pages:
                role = "draft" if manager.is_draft else "target"
                raise OutOfPages(
                    f"request {request} may need {needed} pages, the {role} pool has {manager.pool.num_pages}; "
                    "shorten it or enlarge the pool"
                )
        self.requests[request] = Request(request, prompt, most)

    def schedule(self) -> list[Row]:
        """The rows of the next step, context first, each with pages for all it may write; empty if nothing can run.

        Requests are served by age. One that lacks pages takes them from the youngest, which is suspended in both pools,
        but never from one that this step holds already.
        """
        # A step that was planned and never launched must not keep its grants.
        self.skip(self.planned)
        chosen: list[Row] = []
        waiting = [request for request in self.requests.values() if request.phase is not Phase.FINISHED]
        for request in waiting:
            if len(chosen) == self.max_batch:
                break
            row = self._row(request)
            if not self._grant(row, chosen):
                break
            chosen.append(row)
        self.planned = sorted(chosen, key=lambda row: not row.context)
        return list(self.planned)

    def launch(self, rows: Sequence[Row]) -> None:
        """The step is in flight.

        Raises:
            MirrorMismatch: another one is, and steps do not overlap; or two are.
        """
        if len(self.flying) > int(self.overlap):
            raise MirrorMismatch(f"{len(self.flying)} steps are in flight already; settle the oldest first")
        for row in rows:
            self.caches.launch(row.request)
            request = self.requests[row.request]
            request.flying += 1
            if row.context:
                request.launched += row.tokens
                if row.last_chunk:
                    request.phase = Phase.GENERATION
        self.flying.append(list(rows))
        self.planned = []

    def skip(self, rows: Sequence[Row]) -> None:
        """The step will not run: its grants are given back."""
        for row in rows:
            self.caches.cancel(row.request)
        self.planned = []

    def settle(self, counts: Sequence[int], stopped: Collection[int] = ()) -> list[int]:
        """The oldest step has been read; returns the requests that are gone.

        A request that ends in this step may be in flight in the next one already. What that one keeps is dropped, and
        only then are its pages free.

        Args:
            counts: tokens kept of each row, 1..1+L; 1 of a context row.
            stopped: requests that gave an end token.

        Raises:
            MirrorMismatch: no step is in flight, or it has another number of rows.
        """
        if not self.flying or len(self.flying[0]) != len(counts):
            rows = len(self.flying[0]) if self.flying else "no"
            raise MirrorMismatch(f"{len(counts)} counts for a step of {rows} rows; settle steps in the order of launch")
        gone = []
        for row, count in zip(self.flying.popleft(), counts, strict=True):
            request = self.requests[row.request]
            request.flying -= 1
            self.caches.update_resources(row.request, row.tokens if row.context else count)
            if request.phase is not Phase.FINISHED and (row.last_chunk or not row.context):
                request.generated += count
                if request.generated >= request.most or row.request in stopped:
                    request.phase = Phase.FINISHED
            if request.phase is Phase.FINISHED and not request.flying:
                self.caches.free_resources(row.request)
                del self.requests[row.request]
                gone.append(row.request)
        return gone

    def _row(self, request: Request) -> Row:
        if request.phase is Phase.GENERATION:
            return Row(request.id, 1 + self.draft_len)
        tokens = min(self.chunk, request.prompt - request.launched)
        return Row(request.id, tokens, context=True, last_chunk=request.launched + tokens == request.prompt)

    def _grant(self, row: Row, chosen: Sequence[Row]) -> bool:
        while not self._try(row):
            victim = self._youngest(row.request, chosen)
            if victim is None:
                return False
            self.caches.suspend_request(victim)
        return True

    def _try(self, row: Row) -> bool:
        if not row.context:
            return self.caches.try_allocate_generation(row.request, self.draft_len)
        return self.caches.prepare_context(row.request) and self.caches.resize_context(row.request, row.tokens)

    def _youngest(self, request: int, chosen: Sequence[Row]) -> int | None:
        """The youngest request behind this one that holds pages and is not chosen."""
        held = {row.request for row in chosen}
        for other in reversed(self.requests):
            if other == request:
                return None
            if other not in held and self._holds_pages(other):
                return other
        return None

    def _holds_pages(self, request: int) -> bool:
        return any(request in manager.caches and manager.caches[request].pages for manager in self.caches.managers)
