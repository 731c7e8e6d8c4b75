"""Watchers: the ambient context, Python state by name, records that differ."""

from __future__ import annotations

import pytest
import torch

from graphcheck.backend.emulator import EmulatorBackend
from graphcheck.backend.protocol import Operation
from graphcheck.watch import capture_status, context, host_state, reachable
from graphcheck.watch.differential import baked


class Inner:
    def __init__(self) -> None:
        self.steps = 0
        self.seen: list[int] = []


class Outer:
    def __init__(self) -> None:
        self.inner = Inner()
        self.table = {"a": 1}
        self.rate = 0.5


def test_a_changed_context_is_said_in_words_and_put_back() -> None:
    with EmulatorBackend().active():
        before = context.snapshot()
        with context.preserved():
            torch.set_autocast_enabled("cuda", True)
            torch.set_default_dtype(torch.float64)
            changes = context.changes(before, context.snapshot())
        assert changes == ["autocast: False -> True", "default dtype: torch.float32 -> torch.float64"]
        assert context.snapshot() == before


def test_the_context_can_be_read_without_a_device() -> None:
    with context.preserved():
        assert context.snapshot()["current stream"] is None or torch.cuda.is_initialized()


def test_python_state_is_brought_to_where_another_copy_is() -> None:
    ours, theirs = Outer(), Outer()
    before = reachable.plain_state(theirs)
    theirs.inner.steps, theirs.table["a"], theirs.rate = 3, 2, 0.25
    theirs.inner.seen.append(7)
    names = host_state.mutated(before, reachable.plain_state(theirs))
    assert set(names) == {"inner.steps", "table['a']", "rate", "len(inner.seen)"}
    host_state.advance(ours, theirs, names)
    assert (ours.inner.steps, ours.table, ours.rate, ours.inner.seen) == (3, {"a": 2}, 0.25, [7])
    assert ours.inner.seen is not theirs.inner.seen


def test_names_that_lead_nowhere_are_left_alone() -> None:
    ours = Outer()
    host_state.advance(ours, Outer(), ["inner.nothing", "table[object]", "missing.rate"])
    assert ours.rate == 0.5


def test_hooks_are_taken_off() -> None:
    class Holder:
        def __init__(self) -> None:
            self.layers = [torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())]

    holder = Holder()
    holder.layers[0][0].register_forward_hook(lambda *_: None)
    assert host_state.without_hooks(holder) == ["Linear"]
    assert host_state.without_hooks(holder) == []


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        ("float32[4, 1, 24] stride [24, 24, 1] offset 0", "float32[4, 3, 8] stride [24, 8, 1] offset 0", "GC304"),
        ("float32[4, 24] stride [24, 1] offset 0", "float32[4, 8] stride [24, 1] offset 0", "GC302"),
        ("float32[4, 24] stride [24, 1] offset 0", "float32[4, 24] stride [32, 1] offset 0", "GC302"),
    ],
    ids=["regrouped", "cut", "other stride"],
)
def test_the_same_elements_in_another_number_of_parts_are_a_split_count(first: str, second: str, code: str) -> None:
    old, new = (Operation("aten.sum.dim_IntList", (), (("self", text),)) for text in (first, second))
    assert [finding.code for finding in baked([old], [new], ("a", "b"))] == [code]


def test_the_capture_status_is_denied_inside_the_block_only() -> None:
    backend = EmulatorBackend()
    seen = []

    def region() -> dict[str, torch.Tensor]:
        seen.append(torch.cuda.is_current_stream_capturing())
        with capture_status.denied():
            seen.append(torch.cuda.is_current_stream_capturing())
        seen.append(torch.cuda.is_current_stream_capturing())
        return {}

    with backend.active():
        backend.record(region, backend.pool())
    assert seen == [True, False, True]
