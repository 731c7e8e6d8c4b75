"""Warm-up runs leave no trace: however many, and wherever one of them fails."""

from __future__ import annotations

import pytest
import torch

from eagle3 import DraftLengths, Snapshot, saved

torch.set_num_threads(1)
DRAFT_LEN = 3


class OutOfMemory(Exception):
    """What an engine tolerates in a warm-up."""


class Loop:
    """A step that advances lengths and an output, and fails behind a chosen draft step."""

    def __init__(self) -> None:
        self.lengths = DraftLengths(3, DRAFT_LEN, "cpu")
        self.lengths.stage([122, 7])
        self.drafts = torch.zeros(3, DRAFT_LEN, dtype=torch.int32)
        # As a kernel holds it: not the attribute, but the storage.
        self.view = self.lengths.kv_lens[:2]

    def state(self) -> dict[str, torch.Tensor]:
        return self.lengths.advanced() | {"drafts": self.drafts}

    def step(self, fails_at: int | None = None) -> torch.Tensor:
        lengths = self.lengths
        lengths.verify_lens()
        lengths.count.copy_(torch.tensor([2, 4, 0], dtype=torch.int32))
        lengths.after_accept()
        for step in range(DRAFT_LEN):
            self.drafts[:, step].copy_(lengths.kv_lens)
            if step == fails_at:
                raise OutOfMemory
            lengths.draft_advance(step)
        return torch.cat((self.view.clone(), self.drafts.flatten(), lengths.past))


def bits(loop: Loop) -> dict[str, list[int]]:
    return {name: tensor.flatten().tolist() for name, tensor in loop.state().items()}


@pytest.mark.parametrize("runs", range(6))
def test_the_step_behind_any_number_of_warm_ups_is_that_of_a_fresh_loop(runs):
    loop, fresh = Loop(), Loop()
    addresses = {name: tensor.data_ptr() for name, tensor in loop.state().items()}
    for _ in range(runs):
        with saved(loop.state()):
            loop.step()
    assert bits(loop) == bits(Loop())
    assert addresses == {name: tensor.data_ptr() for name, tensor in loop.state().items()}
    assert torch.equal(loop.step(), fresh.step())


def test_without_the_restore_lengths_run_ahead():
    """The defect that the restore is there for: each unsaved warm-up moves the lengths by what it kept."""
    loop = Loop()
    for run in range(3):
        assert loop.lengths.past.tolist() == [122 + 2 * run, 7 + 4 * run, 0]
        loop.step()


def test_lengths_advanced_in_place_run_ahead_by_one_less_than_what_is_kept():
    """Past 122, three drafts, n kept, two unsaved warm-ups of a loop that stages once: 0, 2, 4, 6 too high."""
    kv_lens = torch.full((4,), 126, dtype=torch.int32)
    kept = torch.tensor([1, 2, 3, 4], dtype=torch.int32)

    def body() -> None:
        kv_lens.sub_(DRAFT_LEN - kept)
        kv_lens.add_(DRAFT_LEN - 1)

    for _ in range(2):
        with saved({"kv_lens": kv_lens}):
            body()
    assert kv_lens.tolist() == [126] * 4
    for _ in range(2):
        body()
    assert kv_lens.tolist() == [126, 128, 130, 132]
    context = torch.full((1,), 300, dtype=torch.int32)
    with saved({"context": context}):
        context.add_(DRAFT_LEN)
    assert context.tolist() == [300]


@pytest.mark.parametrize("fails_at", range(DRAFT_LEN))
def test_a_warm_up_that_fails_at_any_draft_step_leaves_no_trace(fails_at):
    loop, fresh = Loop(), Loop()
    with pytest.raises(OutOfMemory), saved(loop.state()):
        loop.step(fails_at)
    assert bits(loop) == bits(fresh)
    for _ in range(2):
        with saved(loop.state()):
            loop.step()
    assert torch.equal(loop.step(), fresh.step())


@pytest.mark.parametrize("fails_at", range(DRAFT_LEN))
def test_a_restore_outside_finally_is_what_the_failure_injection_finds(fails_at):
    """Planted: save, step, restore, in a row. An exception in between leaves the lengths of half a step behind."""
    loop = Loop()
    with pytest.raises(OutOfMemory):
        snapshot = Snapshot(loop.state())
        loop.step(fails_at)
        snapshot.restore()
    assert bits(loop) != bits(Loop())


def test_a_clone_swapped_in_is_not_seen_by_a_view():
    """Planted: the attribute is bound to a clone for the run. The kernel's view of the original stands still."""
    loop = Loop()
    loop.lengths.verify_lens()
    original = loop.lengths.kv_lens
    loop.lengths.kv_lens = original.clone()
    loop.step()
    loop.lengths.kv_lens = original
    honest = Loop()
    with saved(honest.state()):
        seen = honest.step()[:2]
    assert loop.view.tolist() != seen.tolist()


def test_nothing_is_saved_in_a_step_that_is_no_warm_up():
    loop = Loop()
    with saved(loop.state(), warming=False):
        loop.step()
    assert loop.lengths.past.tolist() == [124, 11, 0]


def test_nothing_is_saved_or_put_back_while_a_stream_captures(monkeypatch):
    loop = Loop()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with saved(loop.state()):
        loop.step()
    assert loop.lengths.past.tolist() == [124, 11, 0]
    with pytest.raises(RuntimeError, match="warm-up snapshot"):
        Snapshot(loop.state())


def test_a_snapshot_is_not_put_back_while_a_stream_captures(monkeypatch):
    snapshot = Snapshot(Loop().state())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="restored warm-up state"):
        snapshot.restore()
