"""Geometry of an operator's results, from its meta kernel and without touching data."""

from __future__ import annotations

from typing import Any

import torch

from graphcheck.backend.emulator.tensor import DeviceTensor
from graphcheck.errors import UnknownOperator

META = torch.device("meta")
_LIMIT = 20_000


class Spec:
    """Size, strides and dtype of one result."""

    __slots__ = ("dtype", "nbytes", "offset", "size", "stride")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.size = tensor.shape
        self.stride = tensor.stride()
        self.dtype = tensor.dtype
        self.offset = tensor.storage_offset()
        extent = 0 if 0 in self.size else 1 + sum((n - 1) * s for n, s in zip(self.size, self.stride, strict=True))
        self.nbytes = (extent + self.offset if extent else 0) * tensor.element_size()


_cache: dict[Any, Any] = {}


def results(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What ``func`` returns, with a `Spec` in the place of each tensor.

    Raises:
        UnknownOperator: the operator has no meta kernel.
    """
    try:
        key = (func, _signature(args), _signature(tuple(kwargs.values())), tuple(kwargs), torch.get_default_dtype())
        found = _cache.get(key)
    except TypeError:
        key, found = None, None
    if found is None:
        found = _run(func, args, kwargs)
        if key is not None:
            if len(_cache) > _LIMIT:
                _cache.clear()
            _cache[key] = found
    return found


def _signature(values: Any) -> Any:
    parts: list[Any] = []
    for value in values:
        kind = type(value)
        if kind is DeviceTensor:
            raw = value._raw
            parts.append((raw.shape, raw.stride(), raw.dtype))
        elif kind is list or kind is tuple:
            parts.append((kind, _signature(value)))
        elif isinstance(value, torch.Tensor):
            parts.append(("host", value.shape, value.stride(), value.dtype))
        else:
            parts.append((kind, value))
    return tuple(parts)


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    meta_args = [_to_meta(arg) for arg in args]
    meta_kwargs = {
        name: META if name == "device" and arg is not None else _to_meta(arg) for name, arg in kwargs.items()
    }
    meta_kwargs.pop("pin_memory", None)
    meta_kwargs.pop("generator", None)
    if not _has_tensor(args) and not _has_tensor(kwargs.values()) and "device" in kwargs:
        meta_kwargs["device"] = META
    if "generator" in kwargs:
        meta_kwargs["generator"] = None
    with torch._C.DisableTorchFunction(), torch.inference_mode(False), torch.no_grad():
        try:
            out = func(*meta_args, **meta_kwargs)
        except NotImplementedError as error:
            raise UnknownOperator(
                f"the emulator cannot record {func}: it has no meta kernel, so the geometry of its result is unknown; "
                "register a fake implementation (torch.library.register_fake)"
            ) from error
    return _specs(out)


def _has_tensor(values: Any) -> bool:
    return any(
        isinstance(value, torch.Tensor) or (isinstance(value, (list, tuple)) and _has_tensor(value)) for value in values
    )


def _to_meta(value: Any) -> Any:
    if type(value) is DeviceTensor:
        raw = value._raw
        return torch.empty_strided(raw.shape, raw.stride(), dtype=raw.dtype, device=META)
    if isinstance(value, torch.Tensor):
        return (
            value
            if value.dim() == 0
            else torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=META)
        )
    if isinstance(value, (list, tuple)):
        return type(value)(_to_meta(item) for item in value)
    return value


def _specs(out: Any) -> Any:
    if isinstance(out, torch.Tensor):
        return Spec(out)
    if isinstance(out, (list, tuple)):
        return [_specs(item) for item in out]
    return out
