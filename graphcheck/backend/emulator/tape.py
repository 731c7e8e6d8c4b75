"""The tape: recorded operations as addresses, geometry and scalars."""

from __future__ import annotations

from typing import Any

import torch

from graphcheck.backend.emulator.memory import Block
from graphcheck.backend.protocol import Operation
from graphcheck.finding import Location


class Ref:
    """A tensor argument: which block, and what of it. No tensor object and no share in the allocation."""

    __slots__ = ("block", "dtype", "generation", "offset", "size", "stride")

    def __init__(self, block: Block, raw: torch.Tensor) -> None:
        self.block = block
        self.generation = block.generation
        self.dtype = raw.dtype
        self.size = tuple(raw.shape)
        self.stride = raw.stride()
        self.offset = raw.storage_offset()

    def build(self) -> torch.Tensor:
        """The raw view."""
        return self.block.view(self.dtype, self.size, self.stride, self.offset)

    def describe(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{dtype}{list(self.size)} stride {list(self.stride)} offset {self.offset}"


class Constant:
    """A host scalar tensor frozen by value."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.detach().clone()

    def build(self) -> torch.Tensor:
        return self.tensor


class Node:
    """One recorded operation.

    Args:
        func: the operator.
        args, kwargs: its arguments with `Ref` and `Constant` in the place of tensors.
        outs: where the results of a functional operator go; None for operators that write their arguments.
        names: names of the positional arguments by schema.
        where: the user's line.
        random: whether it draws from a generator.
    """

    __slots__ = ("args", "func", "kwargs", "names", "outs", "random", "where")

    def __init__(
        self,
        func: Any,
        args: list[Any],
        kwargs: dict[str, Any],
        outs: Any,
        names: tuple[str, ...],
        where: Location | None,
        random: bool,
    ) -> None:
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.outs = outs
        self.names = names
        self.where = where
        self.random = random

    def operation(self) -> Operation:
        """The node stripped of addresses."""
        scalars: list[tuple[str, str]] = []
        geometry: list[tuple[str, str]] = []
        named = [*zip(self.names, self.args, strict=False), *self.kwargs.items()]
        for name, value in named:
            _describe(name, value, scalars, geometry)
        return Operation(str(self.func), tuple(scalars), tuple(geometry), self.where)


def _describe(name: str, value: Any, scalars: list[tuple[str, str]], geometry: list[tuple[str, str]]) -> None:
    if isinstance(value, Ref):
        geometry.append((name, value.describe()))
    elif isinstance(value, Constant):
        scalars.append((name, repr(value.tensor.item())))
    elif isinstance(value, (list, tuple)) and any(isinstance(item, (Ref, Constant)) for item in value):
        for index, item in enumerate(value):
            _describe(f"{name}[{index}]", item, scalars, geometry)
    elif name not in ("device", "layout", "pin_memory", "generator"):
        scalars.append((name, repr(value)))
