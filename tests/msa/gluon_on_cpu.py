"""Gluon kernels as plain Python over torch tensors on the CPU: one program after the other, no layouts, no threads.

What it shows is what a kernel computes: which pages it walks, what it leaves out, where it stores, whether it waits for
something that never comes. What it cannot show is a race between threads, an instruction's rounding, or a wrong layout.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import triton


class Refused(Exception):
    """A kernel does what no GPU would survive: it leaves a tensor, or waits for what never comes."""


def _hold(fine: Any, what: str) -> None:
    if not fine:
        raise Refused(what)


class Value(torch.Tensor):
    """A tensor with what device code asks of one."""

    @staticmethod
    def of(value: Any) -> Value:
        return torch.as_tensor(value).as_subclass(Value)

    # A name that is bound anew is another value: nobody else sees it change.
    def __iadd__(self, more: Any) -> Value:
        return self + more

    def __ior__(self, more: Any) -> Value:
        return self | more

    def __iand__(self, more: Any) -> Value:
        return self & more

    @property
    def type(self) -> SimpleNamespace:
        return SimpleNamespace(layout=None)

    def to(self, dtype: torch.dtype, bitcast: bool = False) -> Value:
        return self.view(dtype) if bitcast else super().to(dtype)


class Pointer:
    """An address in a tensor, or many; what lies outside is refused."""

    def __init__(self, tensor: torch.Tensor, offset: Any = 0) -> None:
        self.tensor, self.offset = tensor, offset
        self.dtype = SimpleNamespace(element_ty=tensor.dtype)

    def __add__(self, more: Any) -> Pointer:
        return Pointer(self.tensor, self.offset + more)

    def places(self, mask: Any) -> tuple[torch.Tensor, torch.Tensor]:
        offset = torch.as_tensor(self.offset).long()
        wanted = torch.as_tensor(True if mask is None else mask).broadcast_to(offset.shape)
        inside = (offset >= 0) & (offset < self.tensor.numel())
        _hold((inside | ~wanted).all(), "an address outside its tensor")
        return offset, wanted


class Pages:
    """Rows [N, D] that the copy engine brings a tile at a time."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows, self.dtype, self.layout = rows, rows.dtype, None


class Shared:
    """Shared memory: a view is the same memory."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory, self.dtype, self.shape, self.layout = memory, memory.dtype, list(memory.shape), None

    def index(self, place: Any) -> Shared:
        _hold(0 <= int(place) < self.shape[0], "a place outside shared memory")
        return Shared(self.memory[int(place)])

    def slice(self, start: int, length: int) -> Shared:
        return Shared(self.memory[start : start + length])

    def permute(self, order: tuple[int, ...]) -> Shared:
        return Shared(self.memory.permute(order))

    def reinterpret(self, dtype: torch.dtype, shape: list[int], layout: object) -> Shared:
        return Shared(self.memory.view(shape))

    _reinterpret = reinterpret

    def load(self, layout: object = None) -> Value:
        return Value.of(self.memory.clone())

    def store(self, value: torch.Tensor) -> None:
        self.memory.copy_(value)


def allocate(dtype: torch.dtype, shape: list[int], layout: object, value: torch.Tensor | None = None) -> Shared:
    """New shared memory; its contents are no numbers that anybody should use."""
    memory = torch.full(shape, float("nan") if dtype.is_floating_point else -77, dtype=dtype)
    shared = Shared(memory)
    if value is not None:
        shared.store(value)
    return shared


def load(pointer: Pointer, mask: Any = None, other: Any = 0) -> Value:
    offset, wanted = pointer.places(mask)
    found = pointer.tensor.view(-1)[torch.where(wanted, offset, 0)]
    return Value.of(torch.where(wanted, found, torch.as_tensor(other).to(found.dtype)))


def store(pointer: Pointer, value: Any, mask: Any = None) -> None:
    offset, wanted = pointer.places(mask)
    value = torch.as_tensor(value).to(pointer.tensor.dtype).broadcast_to(offset.shape)
    pointer.tensor.view(-1)[offset[wanted]] = value[wanted]


def matrix(operand: Any) -> torch.Tensor:
    return (operand.memory if isinstance(operand, Shared) else operand).float().as_subclass(torch.Tensor)


def multiply(left: Any, right: Any, sums: torch.Tensor, use_acc: bool = True, is_async: bool = False) -> Value:
    product = matrix(left) @ matrix(right)
    return Value.of(product + sums if use_acc else product)


class Barriers:
    """Barriers of the copy engine, which brings a tile as soon as it is asked: the number says how often it did."""

    MBarrierLayout = staticmethod(lambda: None)

    @staticmethod
    def init(barrier: Shared, count: int) -> None:
        assert count == 1
        barrier.memory.zero_()

    @staticmethod
    def invalidate(barrier: Shared) -> None:
        barrier.memory.fill_(-77)

    @staticmethod
    def expect(barrier: Shared, nbytes: int, pred: Any = True) -> None:
        _hold(not pred or int(barrier.memory) >= 0, "a barrier that is none")

    @staticmethod
    def wait(barrier: Shared, phase: Any, pred: Any = True) -> None:
        _hold(not pred or int(barrier.memory) % 2 != int(phase), "a tile is waited for that nobody asked for")

    @staticmethod
    def bring(pages: Pages, place: list[Any], barrier: Shared, slot: Shared, pred: Any = True) -> None:
        if pred:
            row = int(place[0])
            _hold(0 <= row <= len(pages.rows) - slot.shape[0], "a page outside the cache")
            slot.memory.copy_(pages.rows[row : row + slot.shape[0]])
            barrier.memory.add_(1)


def _reduced(how: Callable[..., torch.Tensor]) -> Callable[..., Value]:
    return lambda value, axis: Value.of(how(value.as_subclass(torch.Tensor), dim=axis).to(value.dtype))


def _assembly(text: str, constraints: str, given: list[Any], **options: Any) -> Any:
    """The two instructions that device code writes itself."""
    if "popc" in text:
        return Value.of(torch.tensor(int(given[0]).bit_count(), dtype=torch.int32))
    assert text.startswith("mov"), text
    return given[0]


class Language:
    """What device code calls ``gl`` and ``tl``, of a grid."""

    int16, int32, int64 = torch.int16, torch.int32, torch.int64
    float16, float32 = torch.float16, torch.float32
    PropagateNan = SimpleNamespace(ALL=True)
    static_range = range
    load, store = staticmethod(load), staticmethod(store)
    allocate_shared_memory = staticmethod(allocate)
    inline_asm_elementwise = staticmethod(_assembly)
    max, min, sum = (staticmethod(_reduced(how)) for how in (torch.amax, torch.amin, torch.sum))
    to_tensor = staticmethod(lambda value: Value.of(value))
    convert_layout = staticmethod(lambda value, layout: value)
    broadcast_to = staticmethod(lambda value, shape: value.broadcast_to(shape))
    exp2 = staticmethod(lambda value: Value.of(torch.exp2(value)))
    fma = staticmethod(lambda a, b, c: a * b + c)
    num_warps = staticmethod(lambda: 4)

    def __init__(self) -> None:
        self.program = (0, 0)

    def __getattr__(self, name: str) -> Any:
        if name.endswith("Layout"):
            return lambda *given: None
        raise AttributeError(f"{name} is none of what kernels on the CPU know")

    def program_id(self, axis: int) -> Value:
        return Value.of(torch.tensor(self.program[axis], dtype=torch.int32))

    def arange(self, start: int, end: int, layout: object = None) -> Value:
        return Value.of(torch.arange(start, end, dtype=torch.int32))

    def full(self, shape: list[int], value: Any, dtype: torch.dtype, layout: object = None) -> Value:
        return Value.of(torch.full(shape, float(value) if dtype.is_floating_point else int(value), dtype=dtype))

    def zeros(self, shape: list[int], dtype: torch.dtype, layout: object = None) -> Value:
        return self.full(shape, 0, dtype)

    def where(self, condition: Any, one: Any, other: Any) -> Value:
        return Value.of(torch.where(torch.as_tensor(condition), one, other))

    def maximum(self, one: Any, other: Any, propagate_nan: object = None) -> Value:
        how = torch.maximum if propagate_nan or not torch.as_tensor(one).is_floating_point() else torch.fmax
        return Value.of(how(torch.as_tensor(one), torch.as_tensor(other).to(torch.as_tensor(one).dtype)))

    def minimum(self, one: Any, other: Any) -> Value:
        return Value.of(torch.minimum(torch.as_tensor(one), torch.as_tensor(other).to(torch.as_tensor(one).dtype)))

    def reduce(self, value: torch.Tensor, axis: int, how: object) -> Value:
        assert how.__name__ == "larger"  # type: ignore[attr-defined]
        return Value.of(torch.amax(value, axis))


def on_cpu(monkeypatch: pytest.MonkeyPatch, modules: list[ModuleType]) -> Callable[..., None]:
    """Have the device functions of these modules run here; returns what launches one: (function, grid, *arguments)."""
    language = Language()
    replaced = {
        "gl": language,
        "tl": language,
        "mbarrier": Barriers,
        "_bring": Barriers.bring,
        "barrier": lambda: None,
        "fence_async_shared": lambda: None,
        "mma_v2": multiply,
        "warpgroup_mma": multiply,
        "warpgroup_mma_wait": lambda outstanding, deps: deps[0],
        "dependency_wait": lambda wanted: None,
    }
    for module in modules:
        for name, value in list(vars(module).items()):
            if name in replaced:
                monkeypatch.setattr(module, name, replaced[name])
            elif isinstance(value, triton.JITFunction):
                monkeypatch.setattr(module, name, value.fn)
            elif isinstance(value, triton.language.constexpr):
                monkeypatch.setattr(module, name, value.value)

    def launch(function: Callable[..., None], grid: tuple[int, int], *given: Any, **constants: Any) -> None:
        for y in range(grid[1]):
            for x in range(grid[0]):
                language.program = (x, y)
                function(*(Pointer(each) if isinstance(each, torch.Tensor) else each for each in given), **constants)

    return launch


def plant(monkeypatch: pytest.MonkeyPatch, modules: list[ModuleType], name: str, right: str, wrong: str) -> None:
    """Have a device function say ``wrong``; before `on_cpu`."""
    function = next(vars(module)[name] for module in modules if name in vars(module))
    assert function.src.count(right) == 1, f"{name} does not say {right!r} once"
    code = compile(function.src.replace(right, wrong), name, "exec", annotations.compiler_flag)
    made: dict[str, Any] = {}
    exec(code, function.fn.__globals__, made)
    monkeypatch.setattr(function, "fn", made[name])
