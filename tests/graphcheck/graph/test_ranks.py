"""Simulated ranks: graphs recorded on one device stand for those of several."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from graphcheck.graph.nodes import Node
from graphcheck.graph.ranks import unlike

RECORDED = Path(__file__).parent / "recorded" / "masked_sum.json"


def recorded(capture: int) -> list[Node]:
    return [Node.from_json(node) for node in json.loads(RECORDED.read_text())["captures"][capture]["nodes"]]


def test_ranks_that_captured_one_region_are_alike_whatever_their_addresses() -> None:
    assert unlike({"rank 0": recorded(0), "rank 1": recorded(1)}) == []


def test_a_rank_that_launches_once_more_is_named_with_the_node() -> None:
    """Expected: GC902 for the second of three ranks only, at the node that it has too much."""
    more = [*recorded(1), replace(recorded(1)[0], index=5, after=(4,))]
    (finding,) = unlike({"rank 0": recorded(0), "rank 1": more, "rank 2": recorded(0)})
    assert finding.code == "GC902"
    assert (finding.place, finding.expected) == ("node 5", "no node, as on rank 0")
    assert "rank 1" in finding.message


def test_another_kernel_grid_or_order_is_a_difference() -> None:
    nodes = recorded(0)
    for other in (
        [replace(nodes[0], name="other"), *nodes[1:]],
        [replace(nodes[0], grid=(2, 1, 1)), *nodes[1:]],
        [*nodes[:-1], replace(nodes[-1], after=())],
    ):
        assert [finding.code for finding in unlike({"rank 0": nodes, "rank 1": other})] == ["GC902"]
