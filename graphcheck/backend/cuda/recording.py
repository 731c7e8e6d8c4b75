"""One captured CUDA graph with the evidence gathered while it was captured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from graphcheck.backend.cuda.features import features
from graphcheck.backend.cuda.ledger import Ledger
from graphcheck.backend.cuda.oplog import Log
from graphcheck.backend.protocol import Allocation, External, Operation
from graphcheck.errors import EnvironmentUnable, ReplayFailed
from graphcheck.finding import Finding
from graphcheck.graph.nodes import KERNEL, Node
from graphcheck.graph.segments import STATIC, AddressMap, Span, allocator_spans


class CudaRecording:
    """A graph captured with ``keep_graph``.

    Args:
        graph: captured, not yet instantiated.
        outputs: what the region returned.
        log: the operators dispatched while capturing.
        allocations: what the region asked of the allocator.
        peak: the most pool memory alive at one time, bytes.
        found: what the watchers saw.
    """

    def __init__(
        self,
        graph: torch.cuda.CUDAGraph,
        outputs: Mapping[str, torch.Tensor],
        log: Log,
        allocations: Sequence[Allocation],
        peak: int,
        found: Sequence[Finding],
    ) -> None:
        self.outputs = dict(outputs)
        self._graph: torch.cuda.CUDAGraph | None = graph
        self._log = log
        self._allocations = list(allocations)
        self._peak = peak
        self._found = list(found)
        self._ledger = Ledger(log.externals)
        self._named: dict[str, tuple[int, int]] = {}
        # Read before the first replay: instantiation keeps the graph, and argument memory belongs to it.
        self.nodes: list[Node] = self._read()
        graph.instantiate()

    def _read(self) -> list[Node]:
        if not features().bindings:
            return []
        from graphcheck.graph.driver import read_nodes

        if self._graph is None:
            return []
        try:
            return read_nodes(int(self._graph.raw_cuda_graph()))
        except EnvironmentUnable:
            return []

    def replay(self) -> None:
        """Run the graph once on the current stream."""
        if self._graph is None:
            raise ReplayFailed("the graph was closed; capture it again")
        try:
            self._graph.replay()
        except RuntimeError as error:
            raise ReplayFailed(f"replay: {str(error).splitlines()[0]}") from error

    def operations(self) -> Sequence[Operation]:
        """Operators as torch dispatched them, then kernels as the driver recorded them, stripped of addresses."""
        return [*self._log.operations, *self._kernels]

    @cached_property
    def _kernels(self) -> list[Operation]:
        addresses = self.addresses
        # ATen's own kernels are already in the operator log, and their argument structs hold padding.
        foreign = [node for node in self.nodes if node.kind == KERNEL and "at6native" not in node.name]
        return [_kernel_operation(node, addresses) for node in foreign]

    @property
    def addresses(self) -> AddressMap:
        """What the addresses in the graph's arguments belong to, as of now."""
        named = [Span(start, nbytes, STATIC, name) for name, (start, nbytes) in self._named.items()]
        pool = self._graph.pool() if self._graph is not None else (0, 0)
        return AddressMap([_disjoint(named), *allocator_spans({"segments": torch.cuda.memory_snapshot()}, pool)])

    def allocations(self) -> Sequence[Allocation]:
        return self._allocations

    def peak_pool_bytes(self) -> int:
        return self._peak

    def externals(self) -> Sequence[External]:
        return [
            External(touched.address, touched.nbytes, touched.tag, touched.reads, touched.writes, touched.where)
            for touched in self._log.externals.values()
        ]

    def findings(self) -> Sequence[Finding]:
        return self._found

    def name(self, names: Mapping[str, torch.Tensor]) -> None:
        """Remember the owners of external addresses, also of those that only kernel arguments reveal."""
        for name, tensor in names.items():
            if tensor.is_cuda and tensor.numel():
                storage = tensor.untyped_storage()
                self._named.setdefault(name, (storage.data_ptr(), storage.nbytes()))
        owners = {tensor.untyped_storage().data_ptr(): tensor for tensor in names.values() if tensor.is_cuda}
        if self.nodes:
            for word in self.addresses.words(self.nodes):
                owner = owners.get(word.span.start) if word.span.owner == STATIC else None
                if owner is not None:
                    storage = owner.untyped_storage()
                    self._ledger.add(storage.data_ptr(), storage.nbytes(), StorageWeakRef(storage), None)
        self._ledger.name(names)

    def objections(self, names: Mapping[str, torch.Tensor]) -> Sequence[Finding]:
        return self._ledger.objections(names)

    def undeclared_writes(self, declared: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        held = {tensor.untyped_storage().data_ptr() for tensor in declared}
        written = [touched for touched in self._log.externals.values() if touched.writes and touched.tag == "device"]
        found = []
        for touched in written:
            if touched.address not in held and not touched.storage.expired():
                storage = torch.UntypedStorage._new_with_weak_ptr(touched.storage.cdata)
                if storage is not None:
                    found.append(torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage))
        return found

    def close(self) -> None:
        """Drop the graph."""
        if self._graph is not None:
            self._graph.reset()
            self._graph = None


def _disjoint(spans: list[Span]) -> list[Span]:
    """One span per address range; several names of one storage share the first."""
    seen: dict[int, Span] = {}
    for span in spans:
        seen.setdefault(span.start, span)
    return list(seen.values())


def _kernel_operation(node: Node, addresses: AddressMap) -> Operation:
    scalars = [(f"grid.{axis}", str(extent)) for axis, extent in zip("xyz", node.grid, strict=True)]
    scalars += [(f"block.{axis}", str(extent)) for axis, extent in zip("xyz", node.block, strict=True)]
    for argument in node.arguments:
        masked = bytearray(argument.data)
        for offset, value in argument.words():
            span = addresses.find(value)
            if span is not None or value > 1 << 40:
                # An address, host pointers included: another one in the next capture, and no host value.
                masked[offset : offset + 8] = b"@" * 8
        if len(masked) <= 8:
            scalars.append((f"argument {argument.index}", masked.hex()))
    return Operation(node.label, tuple(scalars))
