"""Launches as differential capture compares them: what a kernel node freezes, without its addresses."""

from __future__ import annotations

from collections.abc import Sequence

from graphcheck.backend.protocol import Operation
from graphcheck.graph.nodes import KERNEL, Node
from graphcheck.graph.segments import AddressMap

# Larger words are addresses (host pointers included): another one in the next capture, and no host value.
_LARGEST_NUMBER = 1 << 40
_ATEN = "at6native"


def launches(nodes: Sequence[Node], addresses: AddressMap) -> list[Operation]:
    """Name, grid, block and scalar arguments of every kernel node but ATen's.

    Arguments of more than 8 bytes are structs, which hold padding that differs from capture to capture: left out, as
    are ATen's kernels, whose functors are padded as well and whose operators are compared by their own arguments.
    """
    return [_launch(node, addresses) for node in nodes if node.kind == KERNEL and _ATEN not in node.name]


def _launch(node: Node, addresses: AddressMap) -> Operation:
    scalars = [(f"grid.{axis}", str(extent)) for axis, extent in zip("xyz", node.grid, strict=True)]
    scalars += [(f"block.{axis}", str(extent)) for axis, extent in zip("xyz", node.block, strict=True)]
    for argument in node.arguments:
        if len(argument.data) > 8:
            continue
        value = int.from_bytes(argument.data, "little")
        is_address = len(argument.data) == 8 and (value > _LARGEST_NUMBER or addresses.find(value) is not None)
        scalars.append((f"argument {argument.index}", "an address" if is_address else _number(argument.data)))
    return Operation(node.label, tuple(scalars))


def _number(data: bytes) -> str:
    """The bytes as a number: signed where that is small, and as they are."""
    return f"{int.from_bytes(data, 'little', signed=True)} (0x{data[::-1].hex()})"
