"""One captured CUDA graph with the evidence gathered while it was captured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from graphcheck.backend.cuda.adopted import Adopted
from graphcheck.backend.cuda.features import features
from graphcheck.backend.cuda.ledger import Ledger
from graphcheck.backend.cuda.oplog import bytes_of
from graphcheck.backend.cuda.watch import Watch
from graphcheck.backend.protocol import Allocation, External, Operation, PoolUse
from graphcheck.errors import EnvironmentUnable, ReplayFailed
from graphcheck.finding import Finding
from graphcheck.graph.launches import launches
from graphcheck.graph.nodes import Node
from graphcheck.graph.segments import (
    FOREIGN,
    POOL,
    STATIC,
    WORKSPACE,
    AddressMap,
    Span,
    Word,
    active_blocks,
    allocator_spans,
    argument_words,
    pool_layout,
)

# A graph's generator seed and offset take one smallest block each.
_GENERATOR_BLOCK = 512
# Device addresses lie above; smaller words are counts and flags.
_LOWEST_ADDRESS = 1 << 32


class CudaRecording:
    """A graph captured with ``keep_graph``.

    Args:
        graph: captured, not yet instantiated.
        outputs: what the region returned.
        watch: what was seen while it was captured.
    """

    def __init__(
        self, graph: torch.cuda.CUDAGraph | Adopted, outputs: Mapping[str, torch.Tensor], watch: Watch
    ) -> None:
        self.outputs = dict(outputs)
        self._graph: torch.cuda.CUDAGraph | Adopted | None = graph
        self._log = watch.log
        self._allocations = watch.allocations(outputs)
        self._peak = watch.peak()
        self._blocks = watch.blocks
        self._ledger = Ledger(self._log.externals)
        self._named: dict[str, tuple[int, int]] = {}
        # Read before the first replay: instantiation keeps the graph, and argument memory belongs to it.
        self.nodes: list[Node] = _nodes(graph)
        self._found = watch.findings(self._allocations, self.nodes)
        graph.instantiate()

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
        return launches(self.nodes, self.addresses)

    @property
    def addresses(self) -> AddressMap:
        """What the addresses in the graph's arguments belong to, as of now."""
        named = [Span(start, nbytes, STATIC, name) for name, (start, nbytes) in self._named.items()]
        pool = self._graph.pool() if self._graph is not None else (0, 0)
        return AddressMap([_disjoint(named), *allocator_spans({"segments": torch.cuda.memory_snapshot()}, pool)])

    def _pooled(self, address: int) -> bool:
        """Whether an address lies in the graph's pool now."""
        if self._graph is None:
            return False
        _, segments = pool_layout({"segments": torch.cuda.memory_snapshot()}, self._graph.pool())
        return segments.find(address) is not None

    def classed_words(self) -> list[Word]:
        """Every argument word that lies in device memory, with its class; the graph cannot be replayed afterwards.

        Library workspaces are what goes when torch is told to drop them; what a capture allocates outside the pool is
        torch's own generator state. What the allocator does not know is asked of the driver.
        """
        from graphcheck.graph.driver import allocation

        with_workspaces = _blocks()
        foreign = self.addresses
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        left = _blocks()
        named = {start for start, _ in self._named.values()}
        own = [Span(start, size, WORKSPACE, "cuBLAS") for start, size in with_workspaces.items() if start not in left]
        pooled = {word.span.start for word in foreign.words(self.nodes) if word.span.owner == POOL}
        own += [
            Span(start, size, WORKSPACE, "generator state")
            for start, size in left.items()
            if start not in self._blocks and start not in named and start not in pooled and size <= _GENERATOR_BLOCK
        ]
        words = foreign.with_layer(own).words(self.nodes)
        known = {(word.node, word.argument, word.offset) for word in words}
        for node, argument, offset, value in argument_words(self.nodes):
            if (node, argument, offset) not in known and value > _LOWEST_ADDRESS:
                found = allocation(value)
                if found is not None:
                    words.append(Word(node, argument, offset, value, Span(*found, FOREIGN, "outside torch")))
        return words

    def host_buffers(self) -> frozenset[int]:
        """Addresses of host buffers that the region copied from or to and that are still owned."""
        return frozenset(
            touched.address
            for touched in self._log.externals.values()
            if touched.tag != "device" and not touched.storage.expired()
        )

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
        """Remember the owners of external addresses, also of those that only kernel arguments reveal.

        What the region made lies in the pool: whoever binds its name anew takes nothing from the graph.
        """
        made = self._log.born
        names = {name: tensor for name, tensor in names.items() if _address(tensor) not in made}
        for name, tensor in names.items():
            if tensor.is_cuda and tensor.numel():
                storage = tensor.untyped_storage()
                self._named.setdefault(name, (storage.data_ptr(), storage.nbytes()))
        owners = {_address(tensor): tensor for tensor in names.values() if tensor.is_cuda}
        if self.nodes:
            for word in self.addresses.words(self.nodes):
                owner = owners.get(word.span.start) if word.span.owner == STATIC else None
                if owner is not None:
                    storage = owner.untyped_storage()
                    self._ledger.add(storage.data_ptr(), storage.nbytes(), StorageWeakRef(storage), None)
        self._ledger.name(names)

    def objections(self, names: Mapping[str, torch.Tensor]) -> Sequence[Finding]:
        return self._ledger.objections(names, self._pooled)

    def undeclared_writes(self, declared: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        held = {tensor.untyped_storage().data_ptr() for tensor in declared}
        return [
            bytes_of(touched)
            for touched in self._log.externals.values()
            if touched.writes and touched.tag == "device" and touched.address not in held and touched.alive
        ]

    def pool_uses(self) -> Sequence[PoolUse] | None:
        """One use for each kernel argument that points into the pool; what a kernel does there is not known."""
        if self._graph is None or not self.nodes:
            return None
        words = self.addresses.words(self.nodes)
        return [PoolUse(word.address, 1) for word in words if word.span.owner == POOL]

    def elements_read(self, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor] | None:
        return None

    def close(self) -> None:
        """Drop the graph and its share in its outputs."""
        self.outputs = {}
        if self._graph is not None:
            self._graph.reset()
            self._graph = None


def _nodes(graph: torch.cuda.CUDAGraph | Adopted) -> list[Node]:
    """The graph's nodes; none where they cannot be read."""
    raw = int(graph.raw_cuda_graph()) if features().bindings else 0
    if not raw:
        return []
    from graphcheck.graph.driver import read_nodes

    try:
        return read_nodes(raw)
    except EnvironmentUnable:
        return []


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _blocks() -> dict[int, int]:
    return active_blocks({"segments": torch.cuda.memory_snapshot()})


def _disjoint(spans: list[Span]) -> list[Span]:
    """One span per address range; several names of one storage share the first."""
    seen: dict[int, Span] = {}
    for span in spans:
        seen.setdefault(span.start, span)
    return list(seen.values())
