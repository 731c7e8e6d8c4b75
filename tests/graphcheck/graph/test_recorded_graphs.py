"""Graphs recorded on an H200 (torch 2.11): classes of addresses, differential capture and drawing need no GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphcheck.finding import Severity
from graphcheck.graph.inspection import Inspection
from graphcheck.graph.launches import launches
from graphcheck.graph.nodes import KERNEL, MEM_ALLOC, MEMCPY, Copy, Node, digest, dot, short_name
from graphcheck.graph.segments import FOREIGN, FREED, POOL, STATIC, AddressMap, Span, active_blocks, allocator_spans
from graphcheck.watch.differential import baked

RECORDED = Path(__file__).parent / "recorded"
NAMES = ("masked_sum", "slices_to_longest", "kernel_of_cuda_core")


def captures(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((RECORDED / f"{name}.json").read_text())["captures"]
    return found


def nodes(capture: Mapping[str, Any]) -> list[Node]:
    return [Node.from_json(node) for node in capture["nodes"]]


def addresses(capture: Mapping[str, Any], without: str = "") -> AddressMap:
    named = [Span(*place, STATIC, name) for name, place in capture["named"].items() if name != without]
    return AddressMap([named, *allocator_spans({"segments": capture["segments"]}, tuple(capture["pool"]))])


@pytest.mark.parametrize("name", NAMES)
def test_every_address_is_a_buffer_by_name_or_the_pool(name: str) -> None:
    capture = captures(name)[-1]
    found = {(word.span.owner, word.span.name) for word in addresses(capture).words(nodes(capture))}
    assert found >= {tuple(pair) for pair in capture["classes"]}
    assert {owner for owner, _ in found} <= {STATIC, POOL}


def test_the_argument_positions_of_a_kernel_are_those_of_its_parameters() -> None:
    """Expected: x, lens and out are parameters 0, 1 and 2 of the kernel, at their first byte."""
    capture = captures("kernel_of_cuda_core")[0]
    found = [(word.argument, word.span.name, word.address - word.span.start) for word in _words(capture)]
    assert found == [(0, "x", 0), (1, "lens", 0), (2, "out", 0)]


def _words(capture: Mapping[str, Any]) -> list[Any]:
    return addresses(capture).words(nodes(capture))


def test_a_live_block_that_nobody_names_is_foreign() -> None:
    capture = captures("kernel_of_cuda_core")[0]
    words = addresses(capture, without="lens").words(nodes(capture))
    assert [word.span.owner for word in words] == [STATIC, FOREIGN, STATIC]
    inspection = Inspection("t", nodes(capture), words)
    assert [(finding.code, finding.severity) for finding in inspection.findings] == [("GC401", Severity.WARNING)]
    assert inspection.exit_code == 0


def test_a_block_that_is_free_again_is_freed() -> None:
    capture = captures("kernel_of_cuda_core")[0]
    address = capture["named"]["lens"][0]
    for segment in capture["segments"]:
        for block in segment["blocks"]:
            if block["address"] == address:
                block["state"] = "inactive"
    words = addresses(capture, without="lens").words(nodes(capture))
    assert [word.span.owner for word in words] == [STATIC, FREED, STATIC]
    inspection = Inspection("t", nodes(capture), words)
    assert [finding.code for finding in inspection.findings] == ["GC402"]
    assert inspection.exit_code == 1
    assert address not in active_blocks({"segments": capture["segments"]})


def test_a_frozen_scalar_of_a_kernel_is_named_with_both_values() -> None:
    """Expected: parameter 4, 3 at the first case and 20 at the second; addresses are no difference."""
    first, second = captures("kernel_of_cuda_core")
    found = baked(launches(nodes(first), addresses(first)), launches(nodes(second), addresses(second)), ("a", "b"))
    assert [finding.code for finding in found] == ["GC301"]
    assert "row_sum" in found[0].message
    assert "argument 4" in found[0].message
    assert (found[0].got, found[0].expected.split("; ")[1].split(" (")[0]) == ("3 (0x00000003)", "20")


def test_kernels_of_aten_are_left_to_their_operators() -> None:
    """Expected: nothing to compare, though two records of one region differ in the padding of a functor."""
    first, second = captures("masked_sum")
    assert launches(nodes(first), addresses(first)) == launches(nodes(second), addresses(second)) == []
    padded = [nodes(capture)[2].arguments[1].data for capture in (first, second)]
    assert padded[0] != padded[1]


def test_a_grid_that_changes_is_an_extent() -> None:
    first = nodes(captures("kernel_of_cuda_core")[0])
    second = [replace(first[0], grid=(7, 1, 1))]
    known = addresses(captures("kernel_of_cuda_core")[0])
    (finding,) = baked(launches(first, known), launches(second, known), ("a", "b"))
    assert finding.code == "GC302"
    assert "grid.x" in finding.message
    assert digest(first) != digest(second)


@pytest.mark.parametrize("name", NAMES)
def test_nodes_go_through_json_and_the_digest_does_not_depend_on_addresses(name: str) -> None:
    first, second = captures(name)
    assert [node.to_json() for node in nodes(first)] == first["nodes"]
    assert digest(nodes(first)) == digest(nodes(second)) or name == "slices_to_longest"


def test_the_drawing_has_every_node_and_edge() -> None:
    found = nodes(captures("masked_sum")[0])
    text = dot(found)
    assert text.count("[label=") == len(found)
    assert text.count("->") == sum(len(node.after) for node in found) == len(found) - 1


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("_ZN2at6native18elementwise_kernelILi128ELi4EZNS0_", "elementwise_kernel"),
        ("void at::native::reduce_kernel<512, 1>(int)", "reduce_kernel"),
        ("row_sum", "row_sum"),
        ("_ZN7cutlass7Kernel2I66cutlass_80_simt_sgemm_128x32_8x5_nn_align1EEvNT_6ParamsE", "Kernel2"),
    ],
)
def test_kernel_names_are_short(name: str, short: str) -> None:
    assert short_name(name) == short


def test_a_copy_from_host_memory_is_an_error_unless_somebody_holds_it() -> None:
    copy = Node(0, MEMCPY, copy=Copy(0x1000, 0x7F0000000000, True, False, 64))
    assert Inspection("t", [copy], []).exit_code == 1
    held = Inspection("t", [copy], [], frozenset({0x1000}))
    assert held.exit_code == 0
    assert [(finding.code, finding.severity) for finding in held.findings] == [("GC407", Severity.NOTE)]


def test_memory_nodes_are_an_error() -> None:
    found = Inspection("t", [Node(0, MEM_ALLOC, nbytes=4096, address=0x7F0000000000)], [])
    assert [finding.code for finding in found.findings] == ["GC409"]
    assert "4096" in found.findings[0].message


def test_counts_tell_words_with_and_without_an_address() -> None:
    capture = captures("kernel_of_cuda_core")[0]
    inspection = Inspection("t", nodes(capture), _words(capture))
    assert inspection.counts() == {KERNEL: 1, "words in static input": 3, "words without an address": 0}
    assert inspection.rows()[0][2:] == ("row_sum", "(1, 1, 1) x (4, 1, 1)", "0: x, 1: lens, 2: out, 3 = 24, 4 = 3")
