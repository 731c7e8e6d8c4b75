"""The device guard of c10 for CUDA: C++ asks it which device is current, and a CPU build has none."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import torch

from graphcheck.errors import EnvironmentUnable

_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_CUDA, _META = 1, 14
_TABLE = 48

_Type = ctypes.CFUNCTYPE(ctypes.c_int8, ctypes.c_void_p)
_Device = ctypes.CFUNCTYPE(ctypes.c_uint16, ctypes.c_void_p)


class GuardSlot:
    """Puts a guard that does nothing into the slot, and the old one back."""

    def __init__(self) -> None:
        self._built: Any = None
        self._slot: Any = None
        self._before: Any = None

    def fill(self) -> None:
        """Make the CUDA slot answer without a driver."""
        library = os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so")
        try:
            slots = (ctypes.c_void_p * 32).in_dll(ctypes.CDLL(library), _REGISTRY)
        except (OSError, ValueError) as error:
            raise EnvironmentUnable(
                f"this build of torch ({torch.__version__}) does not show its device guards ({error}); "
                "the emulator needs a Linux build of torch"
            ) from error
        self._slot, self._before = slots, slots[_CUDA]
        if self._built is None:
            self._built = _guard(slots[_META])
        slots[_CUDA] = ctypes.addressof(self._built[0])

    def restore(self) -> None:
        """Put back what stood in the slot."""
        self._slot[_CUDA] = self._before


def _guard(meta: Any) -> tuple[Any, ...]:
    """A guard object with the table of Meta's, which does nothing, except that it says ``cuda:0``.

    The first entries are type, exchangeDevice and getDevice, in the order of their declaration in
    c10/core/impl/DeviceGuardImplInterface.h; a `Device` is returned as two bytes, type and index.
    """
    source = ctypes.cast(ctypes.cast(meta, ctypes.POINTER(ctypes.c_void_p))[0], ctypes.POINTER(ctypes.c_void_p))
    kept = (_Type(lambda _: _CUDA), _Device(lambda _: _CUDA))
    table = (ctypes.c_void_p * (_TABLE + 2))()
    # Two words before the first entry: offset to top and type information.
    for entry in range(-2, _TABLE - 8):
        table[entry + 2] = source[entry]
    table[2] = ctypes.cast(kept[0], ctypes.c_void_p).value
    table[4] = ctypes.cast(kept[1], ctypes.c_void_p).value
    guard = (ctypes.c_void_p * 4)()
    guard[0] = ctypes.addressof(table) + 2 * ctypes.sizeof(ctypes.c_void_p)
    return guard, table, kept
