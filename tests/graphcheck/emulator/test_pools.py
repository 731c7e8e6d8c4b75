"""Private pools hand freed blocks out again; the eager heap does so with blocks that a graph still reads."""

from __future__ import annotations

import torch

from graphcheck.backend.emulator import EmulatorBackend


def test_a_freed_block_serves_the_same_capture_again(backend: EmulatorBackend) -> None:
    x = torch.zeros(256, device="cuda")
    addresses: list[int] = []

    def region() -> dict[str, torch.Tensor]:
        for _ in range(3):
            y = x + 1
            addresses.append(y.data_ptr())
            del y
        return {}

    recording = backend.record(region, backend.pool())
    assert len(set(addresses)) == 1
    assert recording.peak_pool_bytes() == 1024


def test_a_later_capture_in_the_pool_overwrites_what_the_first_freed(backend: EmulatorBackend) -> None:
    x = torch.zeros(256, device="cuda")
    pool = backend.pool()
    leaked: list[torch.Tensor] = []

    def first() -> dict[str, torch.Tensor]:
        intermediate = x + 1
        leaked.append(intermediate.data_ptr())  # type: ignore[arg-type]
        return {"out": intermediate * 2}

    one = backend.record(first, pool)
    two = backend.record(lambda: {"out": x + 7}, pool)
    assert two.outputs["out"].data_ptr() == leaked[0]
    two.replay()
    one.replay()
    assert two.outputs["out"].tolist() != [7.0] * 256


def test_graphs_in_pools_of_their_own_do_not_meet(backend: EmulatorBackend) -> None:
    x = torch.zeros(256, device="cuda")
    one = backend.record(lambda: {"out": (x + 1) * 2}, backend.pool())
    two = backend.record(lambda: {"out": x + 7}, backend.pool())
    two.replay()
    one.replay()
    assert two.outputs["out"].tolist() == [7.0] * 256


def test_an_address_that_a_graph_reads_is_handed_out_first(backend: EmulatorBackend) -> None:
    x = torch.ones(100, device="cuda")
    address = x.data_ptr()
    recording = backend.record(lambda: {"y": x + 1}, backend.pool())
    x = torch.zeros(0)
    stranger = torch.arange(100.0, device="cuda")
    assert stranger.data_ptr() == address
    recording.replay()
    assert recording.outputs["y"].tolist() == [n + 1.0 for n in range(100)]


def test_a_freed_input_reads_as_poison(backend: EmulatorBackend) -> None:
    x = torch.ones(100, device="cuda")
    recording = backend.record(lambda: {"y": x + 1}, backend.pool())
    x = torch.zeros(0)
    recording.replay()
    assert recording.outputs["y"].isnan().all()


def test_addresses_repeat_from_one_activation_to_the_next() -> None:
    emulator = EmulatorBackend()
    seen = []
    for _ in range(2):
        with emulator.active():
            x = torch.zeros(1000, device="cuda")
            y = x + 1
            seen.append((x.data_ptr(), y.data_ptr()))
            assert x.data_ptr() % 512 == 0
            del x, y
    assert seen[0] == seen[1]
