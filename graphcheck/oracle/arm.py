"""An arm: one deep copy of the unallocated component with buffers of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from graphcheck.backend.protocol import Backend, Recording
from graphcheck.cases import Case
from graphcheck.component import Buffers, Component, Recorded
from graphcheck.errors import CaptureRefused, CaseRefused, ComponentRaised, ContractError, GraphcheckError, ReplayFailed
from graphcheck.finding import exception_location
from graphcheck.poison import poison
from graphcheck.watch import context, reachable

T = TypeVar("T")

Snapshot = dict[str, torch.Tensor]


class Arm:
    """A component with its buffers.

    Args:
        component: the component as the user made it, never allocated; it is copied.
        backend: active.
    """

    def __init__(self, component: Component, backend: Backend) -> None:
        self.component = copy.deepcopy(component)
        self.backend = backend
        self.rng = backend.rng_state()
        self.context = context.snapshot()
        self.observed: dict[str, int] = {}
        with backend.allocating():
            buffers = self.call("allocate", self.component.allocate, backend.device)
        if not isinstance(buffers, Buffers):
            raise ContractError(
                f"{component.title}.allocate returned {type(buffers).__name__}; return graphcheck.Buffers(name=tensor, ...)"
            )
        self.buffers = buffers
        for member in ("mutates", "restores", "scratch"):
            unknown = [name for name in getattr(self.component, member) if name not in buffers]
            if unknown:
                raise ContractError(f"{component.title}.{member} names no buffer: {', '.join(unknown)}; fix the name")
        stray = [name for name in self.component.restores if name not in self.component.mutates]
        if stray:
            raise ContractError(f"{component.title}.restores must be a subset of mutates; {', '.join(stray)} is not")

    def call(self, member: str, function: Callable[..., T], *arguments: Any) -> T:
        """Call a member of the component; what it raises by mistake becomes ComponentRaised.

        Refusals of the backend pass through.
        """
        try:
            return function(*arguments)
        except (CaptureRefused, ReplayFailed):
            raise
        except GraphcheckError as error:
            if isinstance(error, CaseRefused):
                raise ComponentRaised(self.component.title, member, error, exception_location(error)) from error
            raise
        except Exception as error:
            raise ComponentRaised(self.component.title, member, error, exception_location(error)) from error

    def stage(self, case: Case) -> str | None:
        """Stage a case; the component's own words if it refuses the case, else None."""
        try:
            self.component.stage(self.buffers, case)
        except CaptureRefused:
            raise
        except ValueError as error:
            return str(error) or type(error).__name__
        except GraphcheckError:
            raise
        except Exception as error:
            raise ComponentRaised(self.component.title, "stage", error, exception_location(error)) from error
        self.context = context.snapshot()
        return None

    def enter(self, other: Arm) -> None:
        """Bring back the ambient context that this arm's staging left, where ``other`` left another one."""
        if self.context != other.context:
            context.apply(self.context)

    def key(self, case: Case) -> Hashable:
        return self.call("key", self.component.key, case)

    def run(self) -> dict[str, torch.Tensor]:
        return self.outputs("run", self.component.run, self.buffers)

    def record(self, pool: object) -> Recording:
        """Capture the region, with the component's own library where it has one."""
        if type(self.component).record is Component.record:
            return self.record_as(self.run, pool)
        with self._host_memory_held():
            return self.backend.adopt(self._record)

    def record_as(self, region: Callable[[], Mapping[str, torch.Tensor]], pool: object) -> Recording:
        """Capture ``region``, which runs code of this arm's component."""
        with self._host_memory_held():
            return self.backend.record(region, pool)

    @contextmanager
    def _host_memory_held(self) -> Iterator[None]:
        """Host memory that a region drops is released behind its capture.

        torch marks the release of pinned memory that a stream has used with an event on that stream. One that is
        recorded inside a capture never completes, and the process goes down at a later request of pinned memory.
        """
        held = [tensor for tensor in self.names().values() if tensor.device.type == "cpu"]
        try:
            yield
        finally:
            held.clear()

    def _record(self) -> Recorded:
        recorded = self.call("record", self.component.record, self.buffers)
        if not isinstance(recorded, Recorded):
            raise ContractError(f"{self.component.title}.record returned {_kind(recorded)}; return graphcheck.Recorded")
        return recorded

    def eager(self, case: Case) -> dict[str, torch.Tensor]:
        return self.outputs("eager", self.component.eager, self.buffers, case)

    def outputs(self, member: str, function: Callable[..., Any], *arguments: Any) -> dict[str, torch.Tensor]:
        """Call a member that returns outputs by name, and check that it does."""
        outputs = self.call(member, function, *arguments)
        if not isinstance(outputs, Mapping) or not all(isinstance(item, torch.Tensor) for item in outputs.values()):
            raise ContractError(
                f"{self.component.title}.{member} returned {_kind(outputs)}; return a mapping of output names to tensors"
            )
        return dict(outputs)

    def observe(self, outputs: Mapping[str, torch.Tensor]) -> Snapshot:
        """Copies of the tensors that the component's consumer sees."""
        seen = self.call("observe", self.component.observe, self.buffers, outputs)
        tensors = dict(reachable.nested(seen, "observe"))
        self.observed = {name: storage_key(tensor) for name, tensor in tensors.items() if tensor.numel()}
        return {name: clone(tensor) for name, tensor in tensors.items()}

    def written(self, case: Case) -> Mapping[str, Any]:
        regions = self.call("written", self.component.written, self.buffers, case)
        if not isinstance(regions, Mapping):
            raise ContractError(
                f"{self.component.title}.written returned {_kind(regions)}; return a mapping of regions"
            )
        return regions

    def names(self) -> dict[str, torch.Tensor]:
        """Every tensor the user can name: buffers, and what hangs on the component."""
        named = dict(self.buffers.items())
        held = {id(tensor) for tensor in named.values()}
        for name, tensor in reachable.tensors(self.component):
            if id(tensor) not in held and tensor is not None:
                named[name] = tensor
        return named

    def on_device(self) -> dict[str, torch.Tensor]:
        """The device buffers by name."""
        kind = self.backend.device.type
        return {name: tensor for name, tensor in self.buffers.items() if tensor.device.type == kind}

    def undeclared(self) -> dict[str, torch.Tensor]:
        """Device tensors that hang on the component and share no memory with a buffer."""
        kind = self.backend.device.type
        owned = {storage_key(tensor) for _, tensor in self.buffers.items()}
        return {
            name: tensor
            for name, tensor in reachable.tensors(self.component)
            if tensor.device.type == kind and tensor.numel() and storage_key(tensor) not in owned
        }

    def with_rng(self, action: Callable[[], T]) -> T:
        """Run ``action`` with this arm's own generator state, and keep the state it leaves."""
        self.backend.set_rng_state(self.rng)
        result = action()
        self.rng = self.backend.rng_state()
        return result


def clone(tensor: torch.Tensor) -> torch.Tensor:
    """A detached copy with memory of its own and the same strides where they are dense."""
    return tensor.detach().clone()


def snapshot(tensors: Mapping[str, torch.Tensor]) -> Snapshot:
    """Copies of the tensors by name."""
    return {name: clone(tensor) for name, tensor in tensors.items()}


def put_back(tensors: Mapping[str, torch.Tensor], saved: Snapshot, names: Iterable[str] | None = None) -> None:
    """Copy saved contents into tensors of the same name, shape and dtype, in place."""
    for name in saved if names is None else names:
        if name in tensors and name in saved and tensors[name].shape == saved[name].shape:
            with torch.no_grad():
                tensors[name].copy_(saved[name])


def poison_all(tensors: Iterable[torch.Tensor]) -> None:
    """Poison several tensors in place."""
    for tensor in tensors:
        poison(tensor)


def storage_key(tensor: torch.Tensor) -> int:
    """The address of the tensor's allocation."""
    return int(tensor.data_ptr() - tensor.storage_offset() * tensor.element_size())


def _kind(value: object) -> str:
    if isinstance(value, Mapping):
        return f"a mapping with {', '.join(sorted({type(item).__name__ for item in value.values()}))} values"
    return type(value).__name__
