"""Where the guard bands of a pool lie: slack behind blocks, and the ends of free blocks."""

from __future__ import annotations

from graphcheck.backend.cuda.guards import Band, bands


def segment(*blocks: tuple[int, int, str]) -> dict[str, object]:
    """A segment at 0x10000 with blocks of (size, requested size, state), one behind the other."""
    made, address = [], 0x10000
    for size, requested, state in blocks:
        made.append({"address": address, "size": size, "requested_size": requested, "state": state})
        address += size
    return {"address": 0x10000, "blocks": made}


def test_slack_behind_a_buffer_is_a_band_of_that_buffer() -> None:
    assert bands([segment((512, 100, "active_allocated"))]) == [Band(0x10000 + 100, 412, 0x10000)]


def test_a_buffer_that_fills_its_block_has_no_band() -> None:
    assert bands([segment((512, 512, "active_allocated"))]) == []


def test_a_free_block_is_watched_at_both_ends() -> None:
    found = bands([segment((512, 512, "active_allocated"), (20_000, 0, "inactive"))])
    start = 0x10000 + 512
    assert found == [Band(start, 4096, 0x10000), Band(start + 20_000 - 4096, 4096, 0x10000)]


def test_a_short_free_block_is_watched_whole() -> None:
    found = bands([segment((5000, 0, "inactive"), (512, 512, "active_allocated"))])
    assert [(band.start - 0x10000, band.nbytes, band.before) for band in found] == [(0, 4096, 0), (4096, 904, 0)]


def test_a_block_that_waits_to_be_freed_is_left_alone() -> None:
    assert bands([segment((512, 100, "active_pending_free"))]) == []
