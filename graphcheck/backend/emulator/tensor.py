"""`DeviceTensor`: says ``cuda:0``, holds a CPU tensor and a share in the allocation that it views."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from graphcheck.backend.emulator import host_read
from graphcheck.backend.emulator.memory import HEAP, Block, Handle
from graphcheck.errors import EnvironmentUnable, UnseenLaunch

CUDA = torch.device("cuda:0")
_make: Any = torch.Tensor._make_wrapper_subclass
_set_data = torch.Tensor.data.__set__  # type: ignore[attr-defined]


class DeviceTensor(torch.Tensor):
    """A tensor in emulated device memory.

    Attributes:
        _raw: CPU tensor over the block's memory, of its own: geometry changes in place touch no other wrapper.
        _handle: the share in the allocation.
    """

    _raw: torch.Tensor
    _handle: Handle

    # The default would build a subclass result for every call; everything interesting is seen by the modes.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:  # type: ignore[override]
        raise EnvironmentUnable(
            f"{func} was called on an emulated device tensor while the emulator is not active; "
            "use the tensor inside `with backend.active():`"
        )

    def data_ptr(self) -> int:
        block = self._handle.block
        if block.null or (self.numel() == 0 and block.nbytes == 0):
            return 0
        return int(block.address + self.storage_offset() * self.element_size())

    def untyped_storage(self) -> Any:
        from graphcheck.backend.emulator.storage import DeviceStorage

        return DeviceStorage(self)

    def storage(self) -> Any:
        return self.untyped_storage()

    def _typed_storage(self) -> Any:
        return self.untyped_storage()

    @property
    def data(self) -> torch.Tensor:
        with torch.no_grad():
            return self.detach()

    @data.setter
    def data(self, other: torch.Tensor) -> None:
        if not isinstance(other, DeviceTensor):
            # The type of the exception is torch's own.
            raise RuntimeError(
                f"Attempted to call `variable.set_data(tensor)`, but `variable` is on {self.device} and `tensor` "
                f"on {other.device}"
            )
        become(self, other._raw, other._handle)

    def __bool__(self) -> bool:
        host_read.read("GC104", "a device tensor decides a Python branch (bool of a tensor)")
        return bool(self._raw)

    def __index__(self) -> int:
        host_read.read("GC106", "a device tensor serves as a slice bound or index on the host")
        return self._raw.__index__()

    def __contains__(self, element: Any) -> bool:
        host_read.read("GC104", "`in` asks a device tensor on the host")
        return element in self._raw if not isinstance(element, DeviceTensor) else element._raw in self._raw

    def tolist(self) -> Any:
        host_read.read("GC102", "tolist() reads a device tensor on the host")
        return self._raw.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        host_read.read("GC102", "numpy() reads a device tensor on the host")
        if not force:
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
        return self._raw.clone().numpy()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.numpy()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        host_read.read("GC102", "printing reads a device tensor on the host")
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            text = repr(self._raw)
        grad = ", requires_grad=True" if self.requires_grad else ""
        return f"{text[:-1]}, device='cuda:0'{grad})"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        host_read.read("GC102", "formatting reads a device tensor on the host")
        return format(self._raw.item() if self.dim() == 0 else str(self), spec)

    def __getitem__(self, key: Any) -> Any:
        with host_read.context("index"):
            return super().__getitem__(host_read.on_device(key, self))

    def __setitem__(self, key: Any, value: Any) -> None:
        with host_read.context("index"):
            super().__setitem__(host_read.on_device(key, self), host_read.assigned(value))

    def record_stream(self, stream: Any) -> None:
        return None

    def is_pinned(self, device: Any = None) -> bool:
        return False

    def pin_memory(self, device: Any = None) -> NoReturn:
        raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")

    def is_shared(self) -> bool:
        return True

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if id(self) in memo:
            return memo[id(self)]  # type: ignore[no-any-return]
        with torch.no_grad():
            copied = self.detach().clone(memory_format=torch.preserve_format)
        copied.requires_grad_(self.requires_grad)
        copied.__dict__.update({k: v for k, v in self.__dict__.items() if k not in ("_raw", "_handle")})
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        host_read.read("GC102", "pickling reads a device tensor on the host")
        return _rebuild, (self._raw.clone(), self.requires_grad)

    @property
    def __cuda_array_interface__(self) -> Any:
        raise UnseenLaunch(
            "a device tensor was handed out through __cuda_array_interface__: the emulator cannot see what other "
            "libraries launch on it; use torch operators, or --backend cuda"
        )

    def __dlpack__(self, *_: Any, **__: Any) -> Any:
        raise UnseenLaunch(
            "a device tensor was handed out through DLPack: the emulator cannot see what other libraries launch on "
            "it; use torch operators, or --backend cuda"
        )


def wrap(raw: torch.Tensor, handle: Handle) -> DeviceTensor:
    """A device tensor with the geometry of ``raw``, a view of the handle's block."""
    tensor = _make(
        DeviceTensor,
        raw.shape,
        strides=raw.stride(),
        storage_offset=raw.storage_offset(),
        dtype=raw.dtype,
        device=CUDA,
    )
    tensor._raw = raw
    tensor._handle = handle
    return tensor  # type: ignore[no-any-return]


def adopt(raw: torch.Tensor) -> DeviceTensor:
    """A device tensor that owns what an operator returned."""
    block, raw = HEAP.adopt(raw)
    return wrap(raw, Handle(block))


def of_block(block: Block, dtype: torch.dtype, size: Any, stride: Any, offset: int = 0) -> DeviceTensor:
    """A device tensor over a block that somebody holds already, or that was just allocated."""
    handle = block.handle() if block.handle is not None else None
    return wrap(block.view(dtype, size, stride, offset), handle if handle is not None else Handle(block))


def become(tensor: DeviceTensor, raw: torch.Tensor, handle: Handle) -> None:
    """Give ``tensor`` other geometry and other memory, as ``.data =``, ``set_`` and ``resize_`` do."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        _set_data(tensor, wrap(raw, handle))
    tensor._raw = raw.detach()
    tensor._handle = handle


def _rebuild(raw: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    return raw.to(CUDA).requires_grad_(requires_grad)
