"""A graph pool in an allocator snapshot, and the ledger's word on memory in it; no device needed."""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from graphcheck.backend.cuda.ledger import Ledger
from graphcheck.backend.cuda.oplog import Touched
from graphcheck.graph.segments import pool_layout

MIB = 1 << 20
SNAPSHOT = {
    "segments": [
        {
            "address": 0x1000,
            "total_size": 2 * MIB,
            "segment_type": "small",
            "segment_pool_id": (0, 7),
            "blocks": [
                {"size": 512, "state": "active_allocated"},
                {"size": 2 * MIB - 512, "state": "inactive"},
            ],
        },
        {
            "address": 0x1000000,
            "total_size": 20 * MIB,
            "segment_type": "large",
            "segment_pool_id": (0, 7),
            "blocks": [{"size": 20 * MIB, "state": "inactive"}],
        },
        {
            "address": 0x4000000,
            "total_size": 2 * MIB,
            "segment_type": "small",
            "segment_pool_id": (0, 0),
            "blocks": [{"size": 2 * MIB, "state": "inactive"}],
        },
    ]
}


def test_free_blocks_are_asked_for_in_pieces_that_their_segment_serves() -> None:
    free, segments = pool_layout(SNAPSHOT, (0, 7))
    assert free == [MIB, MIB - 512, 20 * MIB]
    assert segments.find(0x1000) is not None and segments.find(0x1000000) is not None
    assert segments.find(0x4000000) is None
    assert pool_layout(SNAPSHOT, (0, 9))[0] == []


def test_a_dead_workspace_in_the_pool_went_with_the_graph_that_allocated_it() -> None:
    """Expected: GC411 where the graph writes pool memory that nobody owns; GC402 elsewhere, or where it only reads."""
    storage = torch.zeros(4).untyped_storage()
    weak = StorageWeakRef(storage)
    del storage

    def codes(writes: bool, pooled: bool) -> list[str]:
        touched = Touched(0x1000, 16, weak, "device", None, reads=not writes, writes=writes)
        return [finding.code for finding in Ledger({0x1000: touched}).objections({}, lambda address: pooled)]

    assert codes(writes=True, pooled=True) == ["GC411"]
    assert codes(writes=True, pooled=False) == codes(writes=False, pooled=True) == ["GC402"]
