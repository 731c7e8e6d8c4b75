"""The host's mirror of lengths on the device, which may be a step ahead of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from eagle3.errors import MirrorMismatch
from msa import EagerBatch, Geometry
from msa import restage as restage_flat


@dataclass(frozen=True)
class Staging:
    """What the host says of a step before it knows how the previous one ended.

    Args:
        committed: tokens with valid KV of each row, as far as the host has read them.
        previous: the row that each request had in the step in flight; -1 if none, or if its end is known.
        assumed: tokens that this step was granted, all taken as kept; 0 if none, or if its end is known.
    """

    committed: tuple[int, ...]
    previous: tuple[int, ...]
    assumed: tuple[int, ...]


@dataclass(frozen=True)
class Flown:
    """One row of a step in flight: a request, its query tokens, and whether they are a prompt's, all of which stay."""

    request: int
    tokens: int
    context: bool = False


class Mirror:
    """Lengths as far as the host has read them, and the steps that it has not read.

    Attributes:
        past: tokens with valid KV of each request, as far as they are read.
        flying: steps that are launched and not read, oldest first.
    """

    def __init__(self) -> None:
        self.past: dict[int, int] = {}
        self.flying: deque[list[Flown]] = deque()

    def upper(self, request: int) -> int:
        """Most tokens with valid KV that the device may have: for sizing work, never for masks or gather widths."""
        ahead = sum(row.tokens for step in self.flying for row in step if row.request == request)
        return self.past[request] + ahead

    def staging(self, requests: Sequence[int]) -> Staging:
        """How these requests' next verify step is staged.

        Raises:
            MirrorMismatch: two steps are in flight, so the end of the older one would be lost.
        """
        if len(self.flying) > 1:
            raise MirrorMismatch(f"{len(self.flying)} steps are in flight; settle the oldest before the next is staged")
        rows = {row.request: (place, row) for place, row in enumerate(self.flying[0])} if self.flying else {}
        committed, previous, assumed = [], [], []
        for request in requests:
            place, row = rows.get(request, (-1, None))
            known = row is None or row.context
            committed.append(self.past[request] + (row.tokens if row is not None and row.context else 0))
            previous.append(-1 if known else place)
            assumed.append(0 if known or row is None else row.tokens)
        return Staging(tuple(committed), tuple(previous), tuple(assumed))

    def launch(self, rows: Sequence[Flown]) -> None:
        """The step is in flight; requests that are new here begin without a token."""
        for row in rows:
            self.past.setdefault(row.request, 0)
        self.flying.append(list(rows))

    def settle(self, counts: Sequence[int]) -> None:
        """The oldest step in flight has been read.

        Args:
            counts: tokens kept of each row; of a prompt's all stay, whatever stands there.

        Raises:
            MirrorMismatch: no step is in flight, or it has other rows; nothing is changed.
        """
        step = self.flying[0] if self.flying else []
        wrong = [
            f"request {row.request}: {count} of {row.tokens}"
            for row, count in zip(step, counts, strict=False)
            if not row.context and not 1 <= count <= row.tokens
        ]
        if not step or len(step) != len(counts) or wrong:
            raise MirrorMismatch(
                f"counts {list(counts)} for a step of {len(step)} rows ({', '.join(wrong) or 'of other rows'}); "
                "settle steps in the order of launch, with 1..1+L tokens each"
            )
        self.flying.popleft()
        for row, count in zip(step, counts, strict=True):
            # A request that ended in the step before is forgotten while this one flies.
            if row.request in self.past:
                self.past[row.request] += row.tokens if row.context else count

    def drop(self, request: int) -> None:
        """The request has ended; what a step in flight keeps of it counts for nothing."""
        del self.past[request]


def restage_mixed(
    geometry: Geometry,
    mirror: Mirror,
    rows: Sequence[Flown],
    pages: Sequence[Sequence[int]],
    device: torch.device | str,
) -> EagerBatch:
    """A batch with context requests, planned from the true lengths: lengths, slots and flat table from one source.

    Mixed batches are never captured, so the host reads the counts first (`Mirror.settle`) and builds everything anew: a
    row that lost a page moves all rows behind it in the flat table.

    Args:
        geometry: sizes.
        mirror: lengths before this step.
        rows: of this step, in its order.
        pages: physical pages of each row's request, as granted for full acceptance; the surplus is left out.
        device: where the caches live.

    Raises:
        MirrorMismatch: a step is in flight, so the lengths are not known.
        LengthTooLarge, PageOutOfRange, GeometryError: of msa; the batch cannot be served.
    """
    if mirror.flying:
        raise MirrorMismatch("a mixed batch is planned from true lengths, but a step is in flight; settle it first")
    qo_lens = [row.tokens for row in rows]
    lengths = [mirror.past.get(row.request, 0) + row.tokens for row in rows]
    return restage_flat(geometry, qo_lens, lengths, [0] * len(rows), pages, device)
