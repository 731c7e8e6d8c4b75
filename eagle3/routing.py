"""Routing: which path and which captured graph serves a batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eagle3.errors import BucketMissing, BucketsNotCaptured, CreationRefused, DummiesNotLast
from msa import Geometry, Path, route


@dataclass(frozen=True, order=True)
class Bucket:
    """The key of a captured graph.

    Args:
        draft_len: L, one for all rows.
        batch: rows; those behind the real batch are dummies of length 0.
    """

    draft_len: int
    batch: int

    @property
    def qo_len(self) -> int:
        """Query tokens per request, 1 + L."""
        return 1 + self.draft_len

    def __str__(self) -> str:
        return f"batch {self.batch}, draft_len {self.draft_len}"


class Buckets:
    """The graphs that an engine asked for, and what became of each.

    Args:
        batches: batch sizes.
        draft_lens: draft lengths; each goes with each batch size. 0 is a step without drafts.
        allow_eager: whether a batch without a graph may run eagerly, which the step then says.

    Raises:
        CreationRefused: no size, or one that is out of range.
    """

    def __init__(self, batches: Iterable[int], draft_lens: Iterable[int], *, allow_eager: bool = False) -> None:
        batches, draft_lens = sorted(set(batches)), sorted(set(draft_lens))
        if not batches or not draft_lens or batches[0] < 1 or draft_lens[0] < 0:
            raise CreationRefused(
                f"buckets for batches {batches} and draft lengths {draft_lens}; expected some of both, >= 1 and >= 0"
            )
        self.allow_eager = allow_eager
        self.captured: set[Bucket] = set()
        self.failed: dict[Bucket, str] = {}
        self.keys = [Bucket(draft_len, batch) for draft_len in draft_lens for batch in batches]

    def succeed(self, bucket: Bucket) -> None:
        """The bucket has a graph.

        Raises:
            BucketMissing: nobody asked for it.
        """
        self._known(bucket)
        self.failed.pop(bucket, None)
        self.captured.add(bucket)

    def fail(self, bucket: Bucket, reason: str) -> None:
        """The bucket could not be captured, for this reason.

        Raises:
            BucketMissing: nobody asked for it.
        """
        self._known(bucket)
        self.captured.discard(bucket)
        self.failed[bucket] = reason

    def missing(self) -> dict[Bucket, str]:
        """Every bucket without a graph, and why."""
        return {
            bucket: self.failed.get(bucket, "its capture was never tried")
            for bucket in self.keys
            if bucket not in self.captured
        }

    def check(self) -> None:
        """Pass if every bucket has a graph. Call it when the captures are done.

        Raises:
            BucketsNotCaptured: some have none; all are named, with their reasons.
        """
        missing = self.missing()
        if missing:
            words = "; ".join(f"{bucket}: {reason}" for bucket, reason in missing.items())
            raise BucketsNotCaptured(
                f"{len(missing)} of {len(self.keys)} buckets have no graph ({words}); free memory for their dummy "
                "requests, ask for fewer buckets, or accept eager steps with allow_eager=True"
            )

    def pick(self, requests: int, draft_len: int) -> tuple[Bucket | None, str]:
        """The smallest captured bucket that holds the batch, and what stood in the way of a better one.

        Raises:
            BucketMissing: no bucket was asked for that would hold it, and eager steps are not allowed.
            BucketsNotCaptured: those that were asked for have no graph, and eager steps are not allowed.
        """
        fitting = [bucket for bucket in self.keys if bucket.draft_len == draft_len and bucket.batch >= requests]
        missing = self.missing()
        words = "; ".join(f"{bucket}: {missing[bucket]}" for bucket in fitting if bucket in missing)
        for bucket in fitting:
            if bucket in self.captured:
                first = bucket == fitting[0]
                return bucket, "" if first else f"a larger bucket than needed, because smaller ones failed ({words})"
        kind: type[BucketMissing | BucketsNotCaptured] = BucketsNotCaptured if fitting else BucketMissing
        what = words if fitting else f"there are buckets for {'; '.join(map(str, self.keys))}"
        message = f"no graph for {requests} requests with draft_len {draft_len} ({what})"
        if not self.allow_eager:
            raise kind(
                f"{message}; split the batch, capture such a bucket, or accept eager steps with allow_eager=True"
            )
        return None, message

    def _known(self, bucket: Bucket) -> None:
        if bucket not in self.keys:
            raise BucketMissing(f"no bucket for {bucket} was asked for; there are {'; '.join(map(str, self.keys))}")


@dataclass(frozen=True)
class Step:
    """How a batch runs.

    Args:
        path: decode-shaped or extend.
        rows: requests in the order of their rows; None for dummies, which are last.
        bucket: the graph to replay; None if the step runs eagerly.
        qo_len: query tokens per request on the decode path; None on the extend path.
        reason: why it runs eagerly, or in a larger bucket than needed; empty if all is as it should be.
    """

    path: Path
    rows: tuple[int | None, ...]
    bucket: Bucket | None = None
    qo_len: int | None = None
    reason: str = ""

    @property
    def captured(self) -> bool:
        """Whether a graph is replayed."""
        return self.bucket is not None


def route_step(
    requests: Sequence[int],
    qo_lens: Sequence[int],
    is_context: Sequence[bool],
    buckets: Buckets | None,
    geometry: Geometry,
) -> Step:
    """The path and the graph of a batch.

    Uniform pure generation is decode-shaped and captured, also without drafts. Context requests make a batch eager.

    Args:
        requests: ids, in the order of the rows.
        qo_lens: query tokens of each; 1 + draft_len for generation.
        is_context: whether each still reads its prompt.
        buckets: graphs; None in an engine without.
        geometry: bounds of the decode path.

    Raises:
        RoutingRefused: of msa; no path serves the batch.
        BucketMissing, BucketsNotCaptured: no graph serves it, and eager steps are not allowed.
    """
    chosen = route(qo_lens, is_context, geometry)
    if chosen.decode_qo_len is None:
        return Step(Path.EXTEND, tuple(requests), reason="context requests are in the batch")
    if buckets is None:
        return Step(Path.DECODE, tuple(requests), qo_len=chosen.decode_qo_len, reason="the engine has no graphs")
    bucket, reason = buckets.pick(len(requests), chosen.decode_qo_len - 1)
    padding = (None,) * (bucket.batch - len(requests) if bucket else 0)
    return Step(Path.DECODE, (*requests, *padding), bucket, chosen.decode_qo_len, reason)


def check_dummies_last(rows: Sequence[int | None]) -> None:
    """Pass if no real request stands behind a dummy: corrections are staged for the first rows only.

    Raises:
        DummiesNotLast: one does; every such row is named.
    """
    first = next((place for place, request in enumerate(rows) if request is None), len(rows))
    wrong = [f"row {place}: request {rows[place]}" for place in range(first, len(rows)) if rows[place] is not None]
    if wrong:
        raise DummiesNotLast(f"requests stand behind the dummy in row {first} ({', '.join(wrong)}); put dummies last")
