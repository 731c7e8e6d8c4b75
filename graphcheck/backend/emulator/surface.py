"""The surface of ``torch.cuda`` while the emulator is active, on one undo stack."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from graphcheck.backend.emulator import graphs, host_read, launches, streams
from graphcheck.backend.emulator.device import DEVICE
from graphcheck.backend.emulator.dispatch import DispatchMode
from graphcheck.backend.emulator.function_mode import FunctionMode
from graphcheck.backend.emulator.generator import GENERATORS, DeviceGenerator, HostGenerator, refuse_state
from graphcheck.backend.emulator.guard_slot import GuardSlot
from graphcheck.backend.emulator.memory import HEAP
from graphcheck.backend.emulator.ordering import ORDER

DISPATCH = DispatchMode()  # type: ignore[no-untyped-call]
FUNCTION = FunctionMode()
_SLOT = GuardSlot()
_ABSENT = object()
_TOTAL = 80 << 30


@contextmanager
def modes() -> Iterator[None]:
    """Both modes on."""
    with DISPATCH, FUNCTION:
        yield


class Undo:
    """Replaced attributes, put back in the opposite order."""

    def __init__(self) -> None:
        self._stack: list[tuple[Any, str, Any]] = []

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of a module or class."""
        self._stack.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def all(self) -> None:
        """Put everything back."""
        while self._stack:
            owner, name, before = self._stack.pop()
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


@contextmanager
def activated() -> Iterator[None]:
    """The emulated device exists inside the block; nested blocks share it."""
    DEVICE.depth += 1
    if DEVICE.depth > 1:
        try:
            yield
        finally:
            DEVICE.depth -= 1
        return
    with contextlib.ExitStack() as stack:
        stack.callback(_leave)
        undo = Undo()
        stack.callback(undo.all)
        HEAP.restart()
        ORDER.clear()
        _SLOT.fill()
        stack.callback(_SLOT.restore)
        for owner, name, value in _replacements():
            undo.replace(owner, name, value)
        gc.callbacks.append(graphs.on_collection)
        stack.callback(gc.callbacks.remove, graphs.on_collection)
        stack.enter_context(modes())
        yield


def _leave() -> None:
    DEVICE.depth -= 1
    DEVICE.capture = None
    DEVICE.stream = streams.DEFAULT


def synchronize(device: Any = None) -> None:
    """Wait for the device: nothing to wait for, refused while capturing."""
    if DEVICE.capture is not None:
        DEVICE.refuse("GC101", "the host waits for the device while a stream is capturing", host_read.ADVICE["GC101"])
    ORDER.host_waits()


def current_stream(device: Any = None) -> streams.Stream:
    return DEVICE.stream


def is_current_stream_capturing() -> bool:
    return DEVICE.recording


class DeviceProperties:
    """What ``get_device_properties`` answers."""

    name = "graphcheck emulated device"
    major, minor = 9, 0
    total_memory = _TOTAL
    multi_processor_count = 132
    warp_size = 32
    max_threads_per_multi_processor = 2048
    regs_per_multiprocessor = 65536
    shared_memory_per_block = 49152
    shared_memory_per_block_optin = 232448
    shared_memory_per_multiprocessor = 233472
    L2_cache_size = 50 << 20
    is_integrated = 0
    is_multi_gpu_board = 0
    gcnArchName = ""  # noqa: N815 - the name is torch's


class DeviceContext:
    """``torch.cuda.device(...)``: there is one device."""

    def __init__(self, device: Any = None) -> None:
        self.idx = 0

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def _seed(name: str) -> Callable[..., None]:
    def seed(value: int = 0) -> None:
        refuse_state(name)
        GENERATORS.default.manual_seed(int(value))

    return seed


def _get_rng_state(device: Any = "cuda") -> torch.Tensor:
    return GENERATORS.default.get_state()


def _set_rng_state(new_state: torch.Tensor, device: Any = "cuda") -> None:
    GENERATORS.default.set_state(new_state)


class _GeneratorKind(type(HostGenerator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, HostGenerator)


class Generator(metaclass=_GeneratorKind):
    """Stands in for ``torch.Generator``, which cannot make one for a device that is not there."""

    def __new__(cls, device: Any = "cpu") -> Any:
        if torch.device(device).type == "cuda":
            return DeviceGenerator(device)
        return HostGenerator(device)


def _compiled(original: Any) -> Any:
    """``torch.compile``: the function itself, whose first call inside a capture is refused."""

    def compile(model: Any = None, **kwargs: Any) -> Any:
        if model is None:
            return lambda inner: compile(inner, **kwargs)
        if DEVICE.recording:
            _refuse_compilation("torch.compile")
        return model

    return compile


def _refuse_compilation(what: str) -> None:
    DEVICE.refuse(
        "GC601",
        f"{what} compiles or loads code while the stream is capturing",
        "compile and run every variant once before the capture",
    )


def _loader(name: str, original: Any) -> Any:
    def load(*args: Any, **kwargs: Any) -> Any:
        if DEVICE.recording:
            _refuse_compilation(f"cpp_extension.{name}")
        return original(*args, **kwargs)

    return load


def _graphed(*_: Any, **__: Any) -> Any:
    raise NotImplementedError(
        "the emulator does not provide make_graphed_callables (it needs a captured backward pass); capture with "
        "torch.cuda.graph"
    )


def _standing_in(original: type, ours: Any) -> list[tuple[Any, str, Any]]:
    """What to replace in a class that code may hold already, so that it makes what ``ours`` makes.

    A ``__new__`` that a class did not have must not be set: once it is deleted again, every call with arguments fails,
    for the life of the process. Such a class is given the methods instead.
    """
    if "__new__" in vars(original):
        return [(original, "__new__", staticmethod(lambda cls, *args, **kwargs: ours(*args, **kwargs)))]
    return [(original, name, vars(ours)[name]) for name in ("__init__", "__enter__", "__exit__")]


def _constant(value: Any) -> Any:
    return lambda *_, **__: value


def _replacements() -> list[tuple[Any, str, Any]]:
    """Everything that is replaced while the emulator is active: owner, attribute, value."""
    cuda = torch.cuda
    found: list[tuple[Any, str, Any]] = [
        (cuda, "_lazy_init", _constant(None)),
        (cuda, "_is_in_bad_fork", _constant(False)),
        (cuda, "is_available", _constant(True)),
        (cuda, "is_initialized", _constant(True)),
        (cuda, "init", _constant(None)),
        (cuda, "device_count", _constant(1)),
        (cuda, "current_device", _constant(0)),
        (cuda, "set_device", _constant(None)),
        (cuda, "get_device_name", _constant(DeviceProperties.name)),
        (cuda, "get_device_properties", lambda device=None: DeviceProperties()),
        (cuda, "get_device_capability", _constant((9, 0))),
        (cuda, "is_bf16_supported", _constant(True)),
        (cuda, "device", DeviceContext),
        (cuda, "device_of", DeviceContext),
        (cuda, "synchronize", synchronize),
        (cuda, "empty_cache", _constant(None)),
        (cuda, "memory_allocated", lambda device=None: HEAP.allocated),
        (cuda, "memory_reserved", lambda device=None: HEAP.allocated),
        (cuda, "max_memory_allocated", lambda device=None: HEAP.peak),
        (cuda, "max_memory_reserved", lambda device=None: HEAP.peak),
        (cuda, "reset_peak_memory_stats", lambda device=None: setattr(HEAP, "peak", HEAP.allocated)),
        (cuda, "mem_get_info", lambda device=None: (_TOTAL - HEAP.allocated, _TOTAL)),
        (cuda, "ipc_collect", _constant(None)),
        (cuda, "is_current_stream_capturing", is_current_stream_capturing),
        (cuda, "graph_pool_handle", graphs.pool_handle),
        (cuda, "make_graphed_callables", _graphed),
        (cuda, "stream", streams.StreamContext),
        (cuda, "set_stream", lambda stream: setattr(DEVICE, "stream", stream)),
        (cuda, "current_stream", current_stream),
        (cuda, "default_stream", lambda device=None: streams.DEFAULT),
        (cuda, "manual_seed", _seed("torch.cuda.manual_seed")),
        (cuda, "manual_seed_all", _seed("torch.cuda.manual_seed_all")),
        (cuda, "seed", lambda: GENERATORS.default.seed()),
        (cuda, "seed_all", lambda: GENERATORS.default.seed()),
        (cuda, "initial_seed", lambda: GENERATORS.default.initial_seed()),
        (cuda, "get_rng_state", _get_rng_state),
        (cuda, "set_rng_state", _set_rng_state),
        (cuda, "get_rng_state_all", lambda: [_get_rng_state()]),
        (cuda, "set_rng_state_all", lambda states: _set_rng_state(next(iter(states)))),
        (cuda, "default_generators", (GENERATORS.default,)),
        (torch, "Generator", Generator),
        (torch, "compile", _compiled(torch.compile)),
        (torch.accelerator, "synchronize", synchronize),
        (torch.accelerator, "is_available", _constant(True)),
        (torch.accelerator, "device_count", _constant(1)),
        (torch.accelerator, "current_stream", current_stream),
        (torch.cuda.graphs, "is_current_stream_capturing", is_current_stream_capturing),
        (torch.cuda.graphs, "graph_pool_handle", graphs.pool_handle),
        (torch.cuda.random, "get_rng_state", _get_rng_state),
        (torch.cuda.random, "set_rng_state", _set_rng_state),
        (torch.cuda.random, "manual_seed", _seed("torch.cuda.manual_seed")),
        (torch.cuda.random, "manual_seed_all", _seed("torch.cuda.manual_seed_all")),
    ]
    # Code may hold the classes already (from torch.cuda import Stream).
    for name, home, ours in (
        ("Stream", torch.cuda.streams, streams.Stream),
        ("ExternalStream", torch.cuda.streams, streams.ExternalStream),
        ("Event", torch.cuda.streams, streams.Event),
        ("CUDAGraph", torch.cuda.graphs, graphs.CUDAGraph),
        ("graph", torch.cuda.graphs, graphs.graph),
        ("StreamContext", torch.cuda, streams.StreamContext),
    ):
        original = getattr(home, name)
        found += _standing_in(original, ours)
        found.append((home, name, ours))
        if home is not cuda:
            found.append((cuda, name, ours))
    extension = sys.modules.get("torch.utils.cpp_extension")
    if extension is not None:
        for name in ("load", "load_inline"):
            found.append((extension, name, _loader(name, getattr(extension, name))))
    return found + launches.patches()
