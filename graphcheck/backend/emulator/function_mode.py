"""The function mode: calls that C++ would carry past the dispatch mode, and what the host was about to do."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from graphcheck.backend.emulator import host_read
from graphcheck.backend.emulator.special import pin
from graphcheck.backend.emulator.tensor import DeviceTensor

_BUILT = "a device tensor is built from a Python or NumPy object"


class FunctionMode(TorchFunctionMode):
    """Passes everything on except the few calls in the table."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        handler = _TABLE.get(func)
        if handler is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        return handler(func, args, kwargs if kwargs is not None else {})


def _is_cuda(device: Any) -> bool:
    if device is None:
        return False
    if isinstance(device, int):
        return True
    return torch.device(device).type == "cuda"


def _build(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """``torch.tensor``, ``as_tensor``, ``asarray``."""
    kwargs = dict(kwargs)
    data = args[0] if args else kwargs.pop("data", kwargs.pop("obj", None))
    rest = list(args[1:])
    if func is torch.as_tensor and rest:
        kwargs.setdefault("dtype", rest.pop(0))
        if rest:
            kwargs.setdefault("device", rest.pop(0))
    device = kwargs.pop("device", None)
    grad = bool(kwargs.pop("requires_grad", False))
    pinned = bool(kwargs.pop("pin_memory", False))
    if isinstance(data, DeviceTensor):
        built = data.detach().clone() if func is torch.tensor or kwargs.get("copy") else data
        built = built.to(device=device if device is not None else built.device, dtype=kwargs.get("dtype"))
        return built.requires_grad_() if grad else built
    if isinstance(data, torch.Tensor) and func is not torch.tensor and _is_cuda(device):
        return data.to(device=device, dtype=kwargs.get("dtype"))
    if not _is_cuda(device):
        if device is not None:
            kwargs["device"] = device
        built = func(data, *rest, **kwargs)
    else:
        host_read.upload(_BUILT)
        built = func(data, *rest, **kwargs).to(device)
    if pinned:
        built = pin(built)
    return built.requires_grad_() if grad else built


def _new_tensor(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    kwargs = dict(kwargs)
    tensor = args[0]
    device = kwargs.pop("device", None)
    kwargs.setdefault("dtype", tensor.dtype)
    data = args[1] if len(args) > 1 else kwargs.pop("data")
    return _build(torch.tensor, (data,), {**kwargs, "device": device if device is not None else tensor.device})


def _compatible(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    # A module that moves between host and device must make new parameters: their Python types differ.
    if (type(args[0]) is DeviceTensor) != (type(args[1]) is DeviceTensor):
        return False
    return func(*args, **kwargs)


def _within(name: str) -> Any:
    def handler(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        with host_read.context(name):
            return func(*args, **kwargs)

    return handler


def _tensor_split(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    values = [*args[1:], *kwargs.values()]
    if any(type(value) is DeviceTensor for value in values):
        host_read.read("GC106", "tensor_split takes its bounds from a device tensor")
    return func(*args, **kwargs)


def _one_hot(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    count = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
    if count == -1 and type(args[0] if args else None) is DeviceTensor:
        host_read.read("GC107", "one_hot without num_classes must read the largest index on the host")
    if type(args[0] if args else None) is DeviceTensor and count != -1:
        # The range check of the operator reads on the host; the CUDA kernel has none.
        index = args[0]
        return (index.unsqueeze(-1) == torch.arange(count, device=index.device)).to(torch.int64)
    return func(*args, **kwargs)


_TABLE: dict[Any, Any] = {
    torch.tensor: _build,
    torch.as_tensor: _build,
    torch.asarray: _build,
    torch.Tensor.new_tensor: _new_tensor,
    torch._has_compatible_shallow_copy_type: _compatible,
    torch.tensor_split: _tensor_split,
    torch.Tensor.tensor_split: _tensor_split,
    torch.nn.functional.one_hot: _one_hot,
    **{
        func: _within("bound")
        for func in (torch.narrow, torch.Tensor.narrow, torch.select, torch.Tensor.select, torch.split)
    },
    **{func: _within("branch") for func in (torch.allclose, torch.Tensor.allclose, torch.equal, torch.Tensor.equal)},
}
