"""Staging for full acceptance and correcting on the device equals staging with the true past, for every count."""

from __future__ import annotations

import itertools
from collections import deque

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3 import DraftLengths, OverlapOffsets
from eagle3.errors import MirrorMismatch, ShapeMismatch
from eagle3.mirror import Flown, Mirror, Staging, restage_mixed
from msa import FlatTable, Geometry

torch.set_num_threads(1)
FIELDS = ("past", "kv_lens", "positions")


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def corrected(batch: int, draft_len: int, staging: Staging, count: torch.Tensor, times: int = 1) -> DraftLengths:
    lengths, overlap = DraftLengths(batch, draft_len, "cpu"), OverlapOffsets(batch, draft_len, "cpu")
    overlap.stage(staging)
    overlap.gather(count)
    for _ in range(times):
        overlap.correct(lengths)
    return lengths


def direct(batch: int, draft_len: int, past: list[int]) -> DraftLengths:
    lengths = DraftLengths(batch, draft_len, "cpu")
    lengths.stage(past)
    return lengths


def assert_equal(left: DraftLengths, right: DraftLengths) -> None:
    for name in FIELDS:
        assert torch.equal(getattr(left, name), getattr(right, name)), name


def test_the_vector_of_one_correction():
    """The host has read 118, three drafts, two of four kept: staged 126, true 124; positions 118.. to 120..."""
    lengths, overlap = DraftLengths(1, 3, "cpu"), OverlapOffsets(1, 3, "cpu")
    overlap.stage(Staging((118,), (0,), (4,)))
    assert overlap.staged_lens.tolist() == [126] and overlap.staged_positions.tolist() == [118]
    overlap.gather(ints(2))
    overlap.correct(lengths)
    assert overlap.len_offsets.tolist() == [-2] and overlap.position_offsets.tolist() == [2]
    assert lengths.kv_lens.tolist() == [124] and lengths.positions.tolist() == [120, 121, 122, 123]
    assert lengths.past.tolist() == [120]


@pytest.mark.parametrize("page", [16, 128])
def test_pages_shrink_exactly_where_a_length_crosses_a_boundary(page):
    """A row that loses r tokens loses a page if (length - 1) % page < r; 130 with two kept of four loses its second."""
    for past, kept in itertools.product([page - 1, page, page + 1, page + 3, 2 * page - 1, 2 * page - 6], range(1, 5)):
        lengths = corrected(1, 3, Staging((past,), (0,), (4,)), ints(kept))
        staged, true, rejected = past + 8, int(lengths.kv_lens), 4 - kept
        assert staged - true == rejected
        assert (-(-true // page) < -(-staged // page)) == ((staged - 1) % page < rejected)
    assert int(corrected(1, 3, Staging((122,), (0,), (4,)), ints(2)).kv_lens) == 128


@pytest.mark.parametrize(("staged", "crossing"), [(17, (1, 2, 3)), (18, (2, 3)), (19, (3,)), (20, ())])
def test_which_rejections_cross_a_boundary_of_pages_of_sixteen(staged, crossing):
    """The length staged behind rejected drafts, at a boundary of 16 tokens: as many fewer pages as the rule says."""
    for rejected in (1, 2, 3):
        true = int(corrected(1, 3, Staging((staged - 8,), (0,), (4,)), ints(4 - rejected)).kv_lens)
        assert true == staged - rejected
        assert (true <= 16) == (rejected in crossing)


@pytest.mark.parametrize("draft_len", range(5))
def test_every_count_equals_staging_with_the_true_past(draft_len):
    qo_len = 1 + draft_len
    for kept in itertools.product(range(1, qo_len + 1), repeat=2):
        for past in ([1, 15], [16, 17], [122, 300]):
            staging = Staging((*past,), (0, 1), (qo_len, qo_len))
            true = [tokens + count for tokens, count in zip(past, kept, strict=True)]
            for times in (1, 2):
                assert_equal(corrected(3, draft_len, staging, ints(*kept), times), direct(3, draft_len, true))


STEPS = st.lists(
    st.tuples(
        st.integers(0, 4),  # drafts
        st.lists(st.integers(0, 5), unique=True, min_size=1, max_size=4),  # requests by row
        st.booleans(),  # the host catches up before this step
    ),
    min_size=2,
    max_size=8,
)


@given(STEPS, st.data())
@settings(max_examples=60, deadline=None)
def test_a_host_one_step_behind_stages_what_the_device_has(steps, data):
    """Rows move, requests pause and come back, draft lengths change, dummies stand behind: the mirror serves it all."""
    device = {request: data.draw(st.integers(1, 40), label="prompt") for request in range(6)}
    mirror = Mirror()
    mirror.past.update(device)
    count, unread = torch.zeros(6, dtype=torch.int32), deque()
    for draft_len, requests, caught_up in steps:
        if caught_up and unread:
            mirror.settle(unread.popleft())
        staging = mirror.staging(requests)
        lengths = corrected(5, draft_len, staging, count, data.draw(st.integers(1, 2)))
        true = [device[request] for request in requests]
        assert_equal(lengths, direct(5, draft_len, true))
        staged = [done + assumed for done, assumed in zip(staging.committed, staging.assumed, strict=True)]
        assert all(past <= most for past, most in zip(true, staged, strict=True))
        assert staged == [mirror.upper(request) for request in requests]
        mirror.launch([Flown(request, 1 + draft_len) for request in requests])
        kept = [data.draw(st.integers(1, 1 + draft_len), label="kept") for _ in requests]
        for request, tokens in zip(requests, kept, strict=True):
            device[request] += tokens
        count = torch.full((6,), 99, dtype=torch.int32)  # rows that no request of this step wrote
        count[: len(kept)] = torch.tensor(kept, dtype=torch.int32)
        if unread:
            mirror.settle(unread.popleft())
        unread.append(kept)


def test_offsets_of_dummies_and_new_rows_are_zero():
    overlap = OverlapOffsets(5, 3, "cpu")
    overlap.stage(Staging((50, 60, 70), (1, -1, 0), (4, 0, 4)))
    overlap.gather(ints(1, 3, 2, 2))
    assert overlap.len_offsets.tolist() == [-1, 0, -3, 0, 0]
    assert overlap.position_offsets.tolist() == [3, 0, 1, 0, 0]


def test_a_count_beyond_what_was_granted_raises_nothing_above_the_staged_length():
    lengths = corrected(1, 3, Staging((50,), (0,), (4,)), ints(9))
    assert lengths.kv_lens.tolist() == [58]


def test_the_counts_of_the_coming_step_do_not_reach_an_earlier_correction():
    count = ints(2)
    lengths, overlap = DraftLengths(1, 3, "cpu"), OverlapOffsets(1, 3, "cpu")
    overlap.stage(Staging((50,), (0,), (4,)))
    overlap.gather(count)
    overlap.correct(lengths)
    count.fill_(4)
    overlap.correct(lengths)
    assert lengths.past.tolist() == [52]


def test_a_correction_in_place_is_one_too_many_when_it_runs_twice():
    """Planted: the offset is added to the lengths themselves, as after a warm-up that nothing subtracts from."""
    kv_lens, offset = ints(126), ints(-2)
    for _ in range(2):
        kv_lens.add_(offset)
    assert kv_lens.tolist() != corrected(1, 3, Staging((118,), (0,), (4,)), ints(2), times=2).kv_lens.tolist()


@pytest.mark.parametrize("moved", ["staged_lens", "staged_positions"])
def test_one_baseline_moved_alone_breaks_the_pairing(moved):
    """Planted: a window that is added to lengths or positions, but not to both. The pairing shows it at once."""

    def paired(lengths: DraftLengths) -> bool:
        return bool((lengths.positions.view(-1, lengths.qo_len)[:, 0] == lengths.past).all())

    lengths, overlap = DraftLengths(1, 3, "cpu"), OverlapOffsets(1, 3, "cpu")
    overlap.stage(Staging((118,), (0,), (4,)))
    overlap.gather(ints(2))
    overlap.correct(lengths)
    assert paired(lengths)
    getattr(overlap, moved).add_(5)
    overlap.correct(lengths)
    assert not paired(lengths)


def test_staging_refuses_a_row_without_a_token_and_too_many_rows():
    overlap = OverlapOffsets(1, 3, "cpu")
    with pytest.raises(ShapeMismatch, match="a row of length 0 is padding"):
        overlap.stage(Staging((0,), (-1,), (0,)))
    with pytest.raises(ShapeMismatch, match="at most 1 lengths"):
        overlap.stage(Staging((5, 6), (-1, -1), (0, 0)))


def test_addresses_stay_and_all_that_a_step_changes_is_listed():
    overlap = OverlapOffsets(2, 3, "cpu")
    before = {name: tensor.data_ptr() for name, tensor in overlap.tensors().items()}
    overlap.stage(Staging((118,), (0,), (4,)))
    values = {name: tensor.clone() for name, tensor in overlap.tensors().items()}
    overlap.gather(ints(2))
    overlap.correct(DraftLengths(2, 3, "cpu"))
    changed = {name for name, tensor in overlap.tensors().items() if not torch.equal(tensor, values[name])}
    assert changed == set(overlap.advanced())
    assert before == {name: tensor.data_ptr() for name, tensor in overlap.tensors().items()}


PAGES = [[7, 2, 5], [1, 9], [4, 8]]
M3 = Geometry.m3(4, max_batch=3, max_pages=3, num_pages=10)


def test_a_mixed_batch_is_planned_from_what_was_kept():
    """Context 300; generation 122 behind three rejected drafts, and 200 behind one: the last row's pages must not move."""
    mirror = Mirror()
    mirror.past.update({1: 121, 2: 197})
    mirror.launch([Flown(1, 4), Flown(2, 4)])
    optimistic = [300, *(mirror.upper(request) + 4 for request in (1, 2))]
    assert FlatTable.stage(PAGES, optimistic, M3, "cpu").indptr == (0, 3, 5, 7)
    rows = [Flown(0, 300, context=True), Flown(1, 4), Flown(2, 4)]
    with pytest.raises(MirrorMismatch, match="planned from true lengths"):
        restage_mixed(M3, mirror, rows, PAGES, "cpu")
    mirror.settle([1, 3])
    batch = restage_mixed(M3, mirror, rows, PAGES, "cpu")
    assert [request.kv_len for request in batch.requests] == [300, 126, 204]
    assert [request.page_table[0].tolist() for request in batch.requests] == [[7, 2, 5], [1], [4, 8]]


def test_a_context_request_is_known_although_its_step_is_in_flight():
    mirror = Mirror()
    mirror.launch([Flown(0, 30, context=True)])
    assert mirror.staging([0]) == Staging((30,), (-1,), (0,)) and mirror.upper(0) == 30
    mirror.settle([1])
    assert mirror.past == {0: 30}


def test_a_request_that_ended_counts_for_nothing_in_the_step_behind():
    mirror = Mirror()
    mirror.past[3] = 10
    mirror.launch([Flown(3, 4)])
    mirror.launch([Flown(3, 4)])
    mirror.settle([2])
    mirror.drop(3)
    mirror.settle([4])
    assert mirror.past == {}


@pytest.mark.parametrize("counts", [[], [1, 1], [0], [5]])
def test_counts_of_another_step_are_refused(counts):
    mirror = Mirror()
    mirror.past[3] = 10
    mirror.launch([Flown(3, 4)])
    with pytest.raises(MirrorMismatch, match="settle steps in the order of launch"):
        mirror.settle(counts)
    assert mirror.past == {3: 10} and len(mirror.flying) == 1


def test_two_steps_in_flight_cannot_be_staged_on():
    mirror = Mirror()
    for _ in range(2):
        mirror.launch([Flown(3, 4)])
    with pytest.raises(MirrorMismatch, match="2 steps are in flight"):
        mirror.staging([3])
    mirror.settle([1])
    mirror.settle([1])
    with pytest.raises(MirrorMismatch, match="0 rows"):
        mirror.settle([1])
