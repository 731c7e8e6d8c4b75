"""What a backend offers: activation, capture, replay, and the evidence that only it can see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import torch

from graphcheck.component import Recorded
from graphcheck.finding import Finding, Location


@dataclass(frozen=True)
class Operation:
    """One recorded operation, stripped of addresses: what differential capture compares.

    Args:
        name: operator or kernel, for instance ``"aten.add.Tensor"``.
        scalars: host numbers frozen into it, by argument name (``"end"``, ``"alpha"``, ``"grid.x"``).
        geometry: sizes, strides and offset into the allocation of each tensor argument, by argument name.
        where: the user's line that issued it.
    """

    name: str
    scalars: tuple[tuple[str, str], ...] = ()
    geometry: tuple[tuple[str, str], ...] = ()
    where: Location | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Allocation:
    """Memory asked for inside the captured region.

    Args:
        nbytes: size, bytes.
        kind: ``"transient"`` (free again when the region ends), ``"escaping"`` (still alive and not an output),
            ``"output"`` (still alive and returned by the region) or ``"workspace"`` (a library's own).
        where: the user's line.
    """

    nbytes: int
    kind: str
    where: Location | None = None


@dataclass(frozen=True)
class External:
    """A buffer from outside the pool that a recording reads or writes.

    Args:
        address: first byte of the allocation.
        nbytes: its size, bytes.
        tag: ``"device"``, ``"pinned"`` or ``"pageable"``.
        reads, writes: whether the recording reads or writes it.
        where: the user's line that first recorded it.
    """

    address: int
    nbytes: int
    tag: str
    reads: bool
    writes: bool
    where: Location | None = None


@dataclass(frozen=True)
class PoolUse:
    """What a graph does with one block of its pool.

    Args:
        address, nbytes: the block; on hardware what one kernel argument points at, of which only the address is known.
        reads: whether it reads bytes that it did not write before in the same replay; None where that is not known.
        writes: whether it writes there; None where that is not known.
        reader, writer: the user's lines that first recorded it.
    """

    address: int
    nbytes: int
    reads: bool | None = None
    writes: bool | None = None
    reader: Location | None = None
    writer: Location | None = None


class Recording(Protocol):
    """One captured graph."""

    @property
    def outputs(self) -> Mapping[str, torch.Tensor]:
        """What the region returned, by name."""

    def replay(self) -> None:
        """Run the graph once on the current stream.

        Raises:
            ReplayFailed: an operation of the graph failed; the message names it.
        """

    def operations(self) -> Sequence[Operation]:
        """The operations in recorded order."""

    def allocations(self) -> Sequence[Allocation]:
        """Everything asked of an allocator while the region was recorded, in order (cumulative)."""

    def peak_pool_bytes(self) -> int:
        """The most pool memory that was alive at one time inside the region, bytes, outputs included."""

    def externals(self) -> Sequence[External]:
        """The allocations outside the pool that the graph touches."""

    def findings(self) -> Sequence[Finding]:
        """What the watchers saw while recording that did not stop the capture (GC204, GC202, GC407, ...)."""

    def name(self, names: Mapping[str, torch.Tensor]) -> None:
        """Remember which of the user's names owns each external address (called once, right after capture)."""

    def objections(self, names: Mapping[str, torch.Tensor]) -> Sequence[Finding]:
        """What the address ledger objects to before a replay: rebound, freed, moved, grown, null.

        Args:
            names: the tensors that the user's names hold now.
        """

    def undeclared_writes(self, declared: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Device tensors (whole allocations, uint8) that the graph writes and that overlap none of ``declared``."""

    def pool_uses(self) -> Sequence[PoolUse] | None:
        """What the graph does with the blocks of its pool; None where that cannot be seen."""

    def elements_read(self, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor] | None:
        """By name, the elements that the graph reads before it writes them (boolean, CPU); None where unseen."""

    def close(self) -> None:
        """Drop the graph; its pool memory may be reused."""


class Backend(Protocol):
    """CUDA-graph semantics on some machine."""

    name: str
    device: torch.device
    # Whether a plan's neighbour and evictions are carried out; elsewhere such a plan is refused.
    pool_options: bool

    def active(self) -> AbstractContextManager[None]:
        """Make ``device`` usable inside the block; everything is undone when it is left."""

    def allocating(self) -> AbstractContextManager[None]:
        """Inside, device memory that a factory leaves uninitialised holds poison."""

    def pool(self) -> object:
        """A new private memory pool, shared by recordings that are given it."""

    def record(self, region: Callable[[], Mapping[str, torch.Tensor]], pool: object) -> Recording:
        """Capture ``region`` once, without replaying it.

        Raises:
            CaptureRefused: CUDA refuses something the region does; carries the code and the user's line.
        """

    def neighbour(self, pool: object, outputs: Sequence[torch.Tensor]) -> Recording | None:
        """A graph of the harness's own in ``pool``; its replays overwrite what the pool's other users may overwrite.

        That is every block that is free now, and those of ``outputs`` that lie in the pool. Its replays need no
        order with others. None where there is no such memory.
        """

    def adopt(self, record: Callable[[], Recorded]) -> Recording:
        """Take over a graph that ``record`` captures with a library of its own.

        Raises:
            EnvironmentUnable: this backend cannot see what that library does.
            CaptureRefused: as for `record`.
        """

    def first_difference(self, recording: Recording, region: Callable[[], object]) -> str | None:
        """Replay and run ``region`` eagerly side by side; describe the first operation whose result differs.

        None where this cannot be told (other operations, or no difference). State is not put back.
        """

    def elements_written(
        self, action: Callable[[], object], tensors: Mapping[str, torch.Tensor]
    ) -> tuple[object, Mapping[str, torch.Tensor] | None]:
        """Carry out ``action``: its result and, by name, the elements it wrote (boolean, CPU); None where unseen."""

    def damaged_guards(self) -> Sequence[Finding]:
        """Guard bands around device allocations that no longer hold their pattern (then rewritten)."""

    def rng_state(self) -> torch.Tensor:
        """State of the registered device generator, a CPU byte tensor."""

    def set_rng_state(self, state: torch.Tensor) -> None:
        """Put back what `rng_state` returned."""

    def synchronize(self) -> None:
        """Wait until the device is idle."""

    def sound(self) -> bool:
        """Whether what failed so far has left this process fit for further captures."""
