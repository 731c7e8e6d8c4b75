"""Which path and which graph serves a batch, and that no batch becomes eager in silence."""

from __future__ import annotations

import itertools

import pytest

from eagle3 import Bucket, Buckets, route_step
from eagle3.errors import BucketMissing, BucketsNotCaptured, CreationRefused, DummiesNotLast
from eagle3.routing import check_dummies_last
from msa import Path
from msa.bench import small
from msa.errors import RoutingRefused

BATCHES, DRAFT_LENS = (1, 3, 8), range(6)


def ready(**options: bool) -> Buckets:
    buckets = Buckets(BATCHES, DRAFT_LENS, **options)
    for bucket in buckets.keys:
        buckets.succeed(bucket)
    return buckets


def generation(requests: int, draft_len: int, buckets: Buckets | None):
    return route_step(range(requests), [1 + draft_len] * requests, [False] * requests, buckets, small(8))


@pytest.mark.parametrize("draft_len", DRAFT_LENS)
def test_every_legal_batch_is_captured_in_the_smallest_bucket_that_holds_it(draft_len):
    buckets = ready()
    for requests in range(1, max(BATCHES) + 1):
        step = generation(requests, draft_len, buckets)
        batch = min(size for size in BATCHES if size >= requests)
        assert step.captured and step.bucket == Bucket(draft_len, batch) and step.reason == ""
        assert step.path is Path.DECODE and step.qo_len == 1 + draft_len == step.bucket.qo_len
        assert step.rows == (*range(requests), *[None] * (batch - requests))
        check_dummies_last(step.rows)


def test_context_requests_make_a_step_eager_and_say_so():
    for contexts in ([True], [True, False], [False, True, False]):
        lens = [9 if context else 4 for context in contexts]
        step = route_step(range(len(lens)), lens, contexts, ready(), small(8))
        assert step.path is Path.EXTEND and not step.captured and step.qo_len is None
        assert step.reason == "context requests are in the batch"


def test_generation_of_different_lengths_is_refused_and_so_is_an_empty_batch():
    with pytest.raises(RoutingRefused, match="split the batch by draft length"):
        route_step([0, 1], [4, 3], [False, False], ready(), small(8))
    with pytest.raises(RoutingRefused, match="at least one"):
        route_step([], [], [], ready(), small(8))


def test_an_engine_without_graphs_runs_decode_shaped_and_says_so():
    step = generation(2, 3, None)
    assert step.path is Path.DECODE and step.reason == "the engine has no graphs" and step.rows == (0, 1)


def test_a_bucket_that_failed_is_reported_with_its_reason():
    buckets = Buckets([1, 8], [3])
    buckets.succeed(Bucket(3, 1))
    buckets.fail(Bucket(3, 8), "its dummies need 40 pages, 12 are free")
    message = r"1 of 2 buckets have no graph \(batch 8, draft_len 3: its dummies need 40 pages, 12 are free\)"
    with pytest.raises(BucketsNotCaptured, match=message):
        buckets.check()
    with pytest.raises(BucketsNotCaptured, match=r"no graph for 2 requests with draft_len 3 .*12 are free"):
        generation(2, 3, buckets)
    buckets.succeed(Bucket(3, 8))
    buckets.check()
    assert generation(2, 3, buckets).captured
    buckets.fail(Bucket(3, 8), "lost")
    assert buckets.missing() == {Bucket(3, 8): "lost"}


def test_a_bucket_that_was_never_tried_is_missing_too():
    buckets = Buckets([4], [1, 2])
    buckets.succeed(Bucket(1, 4))
    with pytest.raises(BucketsNotCaptured, match="batch 4, draft_len 2: its capture was never tried"):
        buckets.check()


def test_a_larger_bucket_stands_in_and_says_so():
    buckets = ready()
    buckets.fail(Bucket(2, 3), "out of memory")
    step = generation(2, 2, buckets)
    assert step.bucket == Bucket(2, 8) and len(step.rows) == 8
    assert (
        step.reason == "a larger bucket than needed, because smaller ones failed (batch 3, draft_len 2: out of memory)"
    )


def test_eager_steps_are_taken_only_where_they_were_accepted():
    with pytest.raises(BucketMissing, match="no graph for 9 requests"):
        ready().pick(9, 3)
    with pytest.raises(BucketMissing, match="no graph for 1 requests with draft_len 6"):
        ready().pick(1, 6)
    bucket, reason = ready(allow_eager=True).pick(9, 3)
    assert bucket is None and reason.startswith("no graph for 9 requests with draft_len 3")
    step = generation(2, 3, Buckets([4], [3], allow_eager=True))
    assert not step.captured and step.rows == (0, 1) and "never tried" in step.reason


@pytest.mark.parametrize(("batches", "draft_lens"), [([], [1]), ([1], []), ([0], [1]), ([1], [-1])])
def test_buckets_out_of_range_are_refused(batches, draft_lens):
    with pytest.raises(CreationRefused, match="expected some of both"):
        Buckets(batches, draft_lens)


def test_a_bucket_nobody_asked_for_is_refused():
    for call in (Buckets([1], [3]).succeed, lambda bucket: Buckets([1], [3]).fail(bucket, "x")):
        with pytest.raises(BucketMissing, match="batch 2, draft_len 3 was asked for; there are batch 1, draft_len 3"):
            call(Bucket(3, 2))


def test_dummies_anywhere_but_last_are_named():
    for rows in set(itertools.permutations([0, 1, None, None])):
        if rows[2:] == (None, None):
            check_dummies_last(rows)
        else:
            with pytest.raises(DummiesNotLast, match="put dummies last"):
                check_dummies_last(rows)
    with pytest.raises(DummiesNotLast, match=r"dummy in row 0 \(row 1: request 5\)"):
        check_dummies_last([None, 5])
