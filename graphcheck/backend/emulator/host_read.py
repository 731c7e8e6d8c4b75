"""Host reads of device tensors: what the host was doing, and the code under which a capture refuses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from graphcheck.backend.emulator.device import DEVICE
from graphcheck.backend.emulator.ordering import ORDER

ADVICE = {
    "GC101": "synchronise before the capture and after the replay",
    "GC102": "keep it on the device inside the region and read it after the replay",
    "GC103": "allocate it before the capture and refresh it in place (copy_, fill_) outside",
    "GC104": "choose on the device (torch.where), or compare outside the region",
    "GC105": "keep indices and assigned values in device tensors made before the capture (index_select, fill_)",
    "GC106": "slice to a fixed extent and mask by the device length, or index_select with a static index buffer",
    "GC107": "use the form with a fixed output shape (torch.where, a mask, an explicit size)",
}

_contexts: list[str] = []


@contextmanager
def context(name: str) -> Iterator[None]:
    """Inside the block host reads are understood as part of ``name`` (``"index"``, ``"branch"``, ``"bound"``, ...)."""
    _contexts.append(name)
    try:
        yield
    finally:
        _contexts.pop()


def current() -> str | None:
    """The innermost context."""
    return _contexts[-1] if _contexts else None


def read(code: str, what: str) -> None:
    """Refuse a host read if the current stream is capturing."""
    if DEVICE.capture is not None and DEVICE.recording:
        DEVICE.refuse(code, what, ADVICE[code])
    ORDER.host_waits(ORDER.position(DEVICE.stream))


def scalar_read() -> None:
    """Refuse `item()` and what goes through it."""
    if DEVICE.capture is None or not DEVICE.recording:
        ORDER.host_waits(ORDER.position(DEVICE.stream))
        return
    where = current()
    if where == "branch":
        read("GC104", "a device tensor decides a Python branch")
    if where in ("index", "bound"):
        read("GC106", "a device tensor serves as an index, length or slice bound on the host")
    if where == "shape":
        read("GC107", "the shape of the result depends on data, which the host must read")
    read("GC102", "item() (or int(), float(), format) reads a device tensor on the host")


def upload(what: str) -> None:
    """Refuse a copy from pageable host memory to the device."""
    if DEVICE.capture is None or not DEVICE.recording:
        return
    if current() == "index":
        read("GC105", "an index list, host tensor or assigned Python number must first travel to the device")
    read("GC103", what)


def on_device(key: Any, indexed: torch.Tensor) -> Any:
    """An index whose lists and arrays are tensors: C++ would build them past the modes."""
    if type(key) is list or isinstance(key, np.ndarray):
        return _index_tensor(key, indexed)
    if type(key) is tuple and any(type(part) is list or isinstance(part, np.ndarray) for part in key):
        return tuple(
            _index_tensor(part, indexed) if type(part) is list or isinstance(part, np.ndarray) else part for part in key
        )
    return key


def _index_tensor(index: Any, indexed: torch.Tensor) -> Any:
    if isinstance(index, list) and any(isinstance(item, torch.Tensor) for item in index):
        index = [int(item) if isinstance(item, torch.Tensor) else item for item in index]
    if isinstance(index, list) and any(isinstance(item, slice) or item is None for item in index):
        return tuple(index)
    host = torch.as_tensor(index) if len(index) else torch.empty(0, dtype=torch.long)
    upload("")
    return host.to(indexed.device)


def assigned(value: Any) -> Any:
    """A value to assign whose lists and arrays are tensors."""
    return torch.as_tensor(value) if isinstance(value, (list, np.ndarray)) else value
