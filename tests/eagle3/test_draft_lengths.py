"""The length algebra: what verify, acceptance and each draft step read, and what is left behind."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3 import DraftLengths, Eagle3Error
from eagle3.errors import ShapeMismatch
from eagle3.lengths import extra_kv_tokens
from msa import DecodeDriver
from msa.bench import small

torch.set_num_threads(1)


def keep(lengths: DraftLengths, *counts: int) -> None:
    padded = [*counts, *[0] * (lengths.batch - len(counts))]
    lengths.count.copy_(torch.tensor(padded, dtype=torch.int32))
    lengths.after_accept()


@pytest.mark.parametrize(("kept", "end"), [(1, 126), (2, 127), (3, 128), (4, 129)])
def test_the_loop_ends_one_less_than_the_kept_tokens_too_high(kept, end):
    lengths = DraftLengths(1, 3, "cpu")
    lengths.stage([122])
    assert lengths.kv_lens.tolist() == [126] and lengths.positions.tolist() == [122, 123, 124, 125]
    keep(lengths, kept)
    for step in range(3):
        lengths.draft_advance(step)
    assert lengths.kv_lens.tolist() == [end]
    assert lengths.drift().tolist() == [kept - 1]


def test_the_worked_row():
    """Past 122, three drafts, two tokens kept."""
    lengths = DraftLengths(1, 3, "cpu")
    lengths.stage([122])
    keep(lengths, 2)
    assert lengths.past.tolist() == [124] and lengths.kv_lens.tolist() == [126]
    seen = []
    for step in range(3):
        lengths.draft_advance(step)
        seen.append((*lengths.kv_lens.tolist(), *lengths.draft_positions.tolist()))
    assert seen == [(125, 124), (126, 125), (127, 126)]
    lengths.verify_lens()
    assert lengths.kv_lens.tolist() == [128]


class Incremental:
    """The same algebra as engines write it: lengths are advanced in place, and staged afresh each step."""

    def __init__(self, past: int, draft_len: int, context: int | None = None) -> None:
        self.draft_len, self.past, self.context = draft_len, past, context
        self.kv = past + draft_len + 1 if context is None else context

    def accept(self, kept: int) -> None:
        self.kept = kept
        self.past = self.past + kept if self.context is None else self.kv

    def advance(self, step: int) -> None:
        if step == 0 and self.context is None:
            self.kv -= self.draft_len - self.kept
        else:
            self.kv += 1


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_lengths_computed_anew_are_those_of_advancing_in_place(data):
    draft_len = data.draw(st.integers(1, 5))
    rows = data.draw(st.integers(1, 4))
    start = [data.draw(st.integers(1, 300)) for _ in range(rows)]
    lengths = DraftLengths(rows + 2, draft_len, "cpu")
    lengths.stage(start)
    peers = [Incremental(past, draft_len) for past in start]
    for _ in range(3):
        kept = [data.draw(st.integers(1, draft_len + 1)) for _ in range(rows)]
        peers = [Incremental(peer.past, draft_len) for peer in peers]
        lengths.verify_lens()
        assert lengths.kv_lens.tolist() == [peer.kv for peer in peers] + [0, 0]
        keep(lengths, *kept)
        for peer, count in zip(peers, kept, strict=True):
            peer.accept(count)
        highest = [peer.kv - 1 for peer in peers]
        for step in range(draft_len):
            for _ in range(data.draw(st.integers(1, 2))):  # once and twice are the same
                lengths.draft_advance(step)
            for peer in peers:
                peer.advance(step)
            assert lengths.kv_lens.tolist() == [peer.kv for peer in peers] + [0, 0]
            assert lengths.draft_positions.tolist() == [peer.kv - 1 for peer in peers] + [0, 0]
            if step < draft_len - 1:
                highest = [max(high, peer.kv - 1) for high, peer in zip(highest, peers, strict=True)]
        assert lengths.past.tolist() == [peer.past for peer in peers] + [0, 0]
        assert lengths.drift().tolist() == [count - 1 for count in kept] + [0, 0]
        granted = [peer.past - count + 1 + draft_len for peer, count in zip(peers, kept, strict=True)]
        assert all(high < most + extra_kv_tokens(draft_len) for high, most in zip(highest, granted, strict=True))


def test_all_kept_needs_every_one_of_the_extra_tokens():
    for draft_len in range(1, 6):
        lengths = DraftLengths(1, draft_len, "cpu")
        lengths.stage([50])
        keep(lengths, draft_len + 1)
        for step in range(draft_len - 1):
            lengths.draft_advance(step)
        written = int(lengths.draft_positions) if draft_len > 1 else 50 + draft_len
        assert written == 50 + draft_len + 1 + extra_kv_tokens(draft_len) - 1
    assert extra_kv_tokens(0) == 0


@pytest.mark.parametrize("draft_len", [1, 3, 5])
def test_context_rows_drift_by_the_draft_length(draft_len):
    """A prompt of 77 has just been read: its draft steps are those of a request with 77 tokens behind it."""
    peer = Incremental(0, draft_len, context=77)
    peer.accept(1)
    lengths = DraftLengths(1, draft_len, "cpu")
    lengths.stage([peer.past])
    for step in range(draft_len):
        peer.advance(step)
        lengths.draft_advance(step)
        assert lengths.kv_lens.tolist() == [peer.kv] == [77 + step + 1]
        assert lengths.draft_positions.tolist() == [77 + step]
    assert peer.kv - 77 == draft_len


@pytest.mark.parametrize("draft_len", range(6))
def test_padding_rows_never_advance(draft_len):
    lengths = DraftLengths(4, draft_len, "cpu")
    lengths.stage([9])
    keep(lengths, 1)
    for step in range(max(draft_len, 1)):
        lengths.draft_advance(step)
        assert lengths.kv_lens[1:].tolist() == [0] * 3 and lengths.draft_positions[1:].tolist() == [0] * 3
    lengths.verify_lens()
    assert lengths.kv_lens.tolist() == [11 + draft_len, 0, 0, 0]
    assert lengths.positions[lengths.qo_len :].tolist() == [0] * 3 * lengths.qo_len


def test_a_batch_that_shrinks_leaves_nothing_behind():
    lengths = DraftLengths(8, 2, "cpu")
    for rows in (8, 5, 3, 1, 8):
        lengths.stage(range(1, rows + 1))
        assert lengths.kv_lens.tolist() == [row + 4 for row in range(rows)] + [0] * (8 - rows)
        keep(lengths, *[2] * rows)


def test_no_step_moves_an_address_and_every_advanced_tensor_is_listed():
    lengths = DraftLengths(2, 3, "cpu")
    before = {name: tensor.data_ptr() for name, tensor in lengths.tensors().items()}
    values = {name: tensor.clone() for name, tensor in lengths.tensors().items()}
    lengths.stage([5, 9])
    keep(lengths, 2, 4)
    lengths.draft_advance(0)
    assert before == {name: tensor.data_ptr() for name, tensor in lengths.tensors().items()}
    changed = {name for name, tensor in lengths.tensors().items() if not torch.equal(tensor, values[name])}
    assert changed == set(lengths.advanced())


def test_tensors_that_drivers_already_read_are_shared():
    kv_lens, past = torch.zeros(2, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    lengths = DraftLengths(2, 1, "cpu", kv_lens=kv_lens, past=past)
    lengths.stage([4])
    assert kv_lens.tolist() == [6, 0] and past.tolist() == [4, 0]


@pytest.mark.parametrize("draft_len", [1, 3])
def test_drivers_that_share_the_lengths_write_where_the_loop_says(draft_len):
    """Verify and draft drivers over one tensor: every ladder stands at the loop's positions, padding writes nowhere."""
    geometry = small()
    pages = [list(range(b * 10, b * 10 + 10)) for b in range(3)]
    verify = DecodeDriver(geometry, 3, 1 + draft_len, "cpu")
    draft = DecodeDriver(geometry, 3, 1, "cpu", kv_lens=verify.kv_lens, page_table=verify.page_table)
    lengths = DraftLengths(3, draft_len, "cpu", kv_lens=verify.kv_lens)
    verify.page_table[:2] = torch.tensor(pages[:2], dtype=torch.int32)
    lengths.stage([15, 40])
    verify.plan()
    real = 2 * (1 + draft_len)
    assert torch.equal(verify.ladder.qo_offsets[:real], lengths.positions[:real])
    assert verify.ladder.slots[real:].tolist() == [geometry.dummy_slot] * (1 + draft_len)
    keep(lengths, draft_len + 1, 1)
    for step in range(draft_len):
        lengths.draft_advance(step)
        draft.plan()
        assert torch.equal(draft.ladder.qo_offsets[:2], lengths.draft_positions[:2])
        slots = [pages[b][p // 16] * 16 + p % 16 for b, p in enumerate(lengths.draft_positions[:2].tolist())]
        assert draft.ladder.slots.tolist() == [*slots, geometry.dummy_slot]


def test_at_rest_every_row_is_padding_and_what_was_there_comes_back():
    lengths = DraftLengths(2, 3, "cpu")
    lengths.stage([122, 5])
    keep(lengths, 2, 4)
    before = {name: tensor.clone() for name, tensor in lengths.advanced().items()}
    with pytest.raises(ZeroDivisionError), lengths.at_rest():
        lengths.verify_lens()
        assert not any(tensor.any() for tensor in lengths.advanced().values())
        raise ZeroDivisionError
    assert [name for name, tensor in lengths.advanced().items() if not torch.equal(tensor, before[name])] == []


@pytest.mark.parametrize("past", [[1, 2, 3], [-1]])
def test_what_does_not_fit_is_refused(past):
    with pytest.raises(ShapeMismatch, match="at most 2 lengths"):
        DraftLengths(2, 1, "cpu").stage(past)


def test_sizes_and_given_tensors_are_checked():
    with pytest.raises(Eagle3Error, match="draft_len -1"):
        DraftLengths(1, -1, "cpu")
    with pytest.raises(ShapeMismatch, match=r"past is torch\.int64"):
        DraftLengths(1, 1, "cpu", past=torch.zeros(1, dtype=torch.int64))


def test_state_is_not_built_while_a_stream_captures(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="draft lengths"):
        DraftLengths(1, 1, "cpu")
