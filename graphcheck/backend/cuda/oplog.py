"""The operators that torch dispatches while a region is captured: names, scalars, geometry, owners, source lines.

The driver's graph knows kernels and bytes; this log knows which torch operator and which user line they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from graphcheck.backend.protocol import Operation
from graphcheck.finding import Location, user_location


@dataclass
class Touched:
    """An allocation from outside the region that operators of the region used.

    Args:
        address, nbytes: where it lies.
        storage: weak; tells whether it is still owned.
        tag: ``"device"``, ``"pinned"`` or ``"pageable"``.
        where: the user's line that used it first.
    """

    address: int
    nbytes: int
    storage: StorageWeakRef
    tag: str
    where: Location | None
    reads: bool = False
    writes: bool = False

    @property
    def alive(self) -> bool:
        """Whether somebody still owns the memory."""
        return not self.storage.expired()


def bytes_of(touched: Touched) -> torch.Tensor:
    """A living allocation, whole, as uint8 on the device."""
    storage = torch.UntypedStorage._new_with_weak_ptr(touched.storage.cdata)
    return torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage)


@dataclass
class Log:
    """What was dispatched, in order."""

    operations: list[Operation] = field(default_factory=list)
    externals: dict[int, Touched] = field(default_factory=dict)
    born: dict[int, Location | None] = field(default_factory=dict)
    escaped: list[tuple[str, Location | None]] = field(default_factory=list)
    pinned: list[Location | None] = field(default_factory=list)
    # Pinned tensors that the region touched, kept until the capture has ended: torch marks their release with an event
    # on the stream, and one that is recorded inside a capture poisons its pinned allocator for the whole process.
    held: list[torch.Tensor] = field(default_factory=list)
    current: str = ""
    function: str = ""
    where: Location | None = None


class OperatorLog(TorchDispatchMode):
    """Logs every operator that touches device memory; executes it unchanged."""

    def __init__(self, log: Log, capturing: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.log = log
        self.capturing = capturing

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        log = self.log
        log.current = str(func)
        log.where = user_location()
        named = list(_named(func, args, kwargs))
        tensors = [(name, value, writes) for name, value, writes in named if isinstance(value, torch.Tensor)]
        on_device = any(tensor.is_cuda for _, tensor, _ in tensors)
        elsewhere = self.capturing and on_device and not torch.cuda.is_current_stream_capturing()
        result = func(*args, **kwargs)
        outputs = list(_tensors(result))
        if self.capturing:
            everything = [*(tensor for _, tensor, _ in tensors), *outputs]
            log.held += [tensor for tensor in everything if not tensor.is_cuda and tensor.is_pinned()]
        if not on_device and not any(tensor.is_cuda for tensor in outputs):
            if self.capturing and (kwargs.get("pin_memory") or "pin_memory" in func._schema.name):
                log.pinned.append(log.where)
            return result
        returns_views = any(value.alias_info is not None for value in func._schema.returns)
        if returns_views and not any(writes for _, _, writes in named):
            return result
        for _, tensor, writes in tensors:
            self._touch(tensor, writes)
        for tensor in outputs:
            if tensor.is_cuda:
                address = tensor.untyped_storage().data_ptr()
                if address and address not in log.externals:
                    log.born.setdefault(address, log.where)
        if elsewhere:
            log.escaped.append((str(func), log.where))
        else:
            log.operations.append(_operation(func, named, log.where))
        return result

    def _touch(self, tensor: torch.Tensor, writes: bool) -> None:
        if tensor.numel() == 0 or (not tensor.is_cuda and tensor.dim() == 0):
            return
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address in self.log.born:
            return
        found = self.log.externals.get(address)
        if found is None:
            tag = "device" if tensor.is_cuda else "pinned" if tensor.is_pinned() else "pageable"
            found = Touched(address, storage.nbytes(), StorageWeakRef(storage), tag, self.log.where)
            self.log.externals[address] = found
        found.writes = found.writes or writes
        found.reads = found.reads or not writes


class FunctionLog(TorchFunctionMode):
    """Remembers the outermost torch function, which tells ``bool(t)`` from ``t.item()``."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.log = log

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        before = self.log.function
        if not before:
            self.log.function = getattr(func, "__name__", str(func))
            self.log.where = user_location()
        result = func(*args, **(kwargs or {}))
        self.log.function = before
        return result


def _named(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    """Argument name, value and whether the operator writes it; lists of tensors are taken apart."""
    for index, argument in enumerate(func._schema.arguments):
        value = args[index] if index < len(args) else kwargs.get(argument.name)
        writes = argument.alias_info is not None and argument.alias_info.is_write
        if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
            for place, item in enumerate(value):
                yield f"{argument.name}[{place}]", item, writes
        else:
            yield argument.name, value, writes


def _tensors(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, (list, tuple)):
        for item in result:
            yield from _tensors(item)


def described(tensor: torch.Tensor) -> str:
    """Dtype, extents, strides and offset of a tensor argument, in the words of the emulator's tape."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype}{list(tensor.shape)} stride {list(tensor.stride())} offset {tensor.storage_offset()}"


def _operation(func: Any, named: list[tuple[str, Any, bool]], where: Location | None) -> Operation:
    scalars, geometry = [], []
    for name, value, _ in named:
        if isinstance(value, torch.Tensor):
            geometry.append((name, described(value)))
            if not value.is_cuda and value.dim() == 0:
                scalars.append((name, str(value.item())))
        elif value is not None and not isinstance(value, (torch.device, torch.Generator)):
            scalars.append((name, str(value)))
    return Operation(str(func), tuple(scalars), tuple(geometry), where)
