"""`DeviceStorage`: what ``untyped_storage()`` of a device tensor answers."""

from __future__ import annotations

import torch

from graphcheck.backend.emulator.memory import Handle
from graphcheck.backend.emulator.tensor import CUDA, DeviceTensor


class DeviceStorage:
    """The allocation behind a device tensor; holding it keeps the allocation alive."""

    def __init__(self, tensor: DeviceTensor) -> None:
        self.handle: Handle = tensor._handle
        self.device = CUDA
        self.is_cuda = True

    def data_ptr(self) -> int:
        block = self.handle.block
        return 0 if block.null or block.nbytes == 0 else block.address

    def nbytes(self) -> int:
        return 0 if self.handle.block.null else self.handle.block.nbytes

    size = nbytes
    __len__ = nbytes

    @property
    def _cdata(self) -> int:
        return self.handle.block.address

    def resize_(self, nbytes: int) -> DeviceStorage:
        """Give the memory away (``resize_(0)``); every view of it then has a null address."""
        if nbytes == 0:
            self.handle.block.null = True
        elif nbytes <= self.handle.block.nbytes:
            self.handle.block.null = False
        else:
            raise RuntimeError("the emulator cannot enlarge a storage in place; use resize_ on the tensor")
        return self

    def untyped(self) -> DeviceStorage:
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceStorage) and other.handle is self.handle

    def __hash__(self) -> int:
        return id(self.handle)

    def cpu(self) -> torch.UntypedStorage:
        from graphcheck.backend.emulator import host_read

        host_read.read("GC102", "storage().cpu() reads device memory on the host")
        return self.handle.block.bytes().clone().untyped_storage()
