"""What is known of a value without running anything: a small lattice, and the facts that rules ask for."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any


class Kind(str, enum.Enum):
    """The point of the lattice. *Unknown* is the top: no rule accuses it."""

    UNKNOWN = "unknown"
    CONSTANT = "constant"
    VARYING = "host value that may change between replays"
    READ = "host value read from a device tensor"
    DEVICE = "device tensor"
    HOST = "host tensor"
    CONTAINER = "container"
    OBJECT = "object"
    BUFFERS = "buffers"
    SYMBOL = "symbol"
    STREAM = "stream"
    EVENT = "event"
    GRAPH = "graph"


@dataclass(frozen=True)
class Value:
    """An abstract value.

    Args:
        kind: the point of the lattice.
        path: where it lives, for instance ``self.layer.weight``; empty for temporaries.
        symbol: dotted name of something imported (``torch.cuda.synchronize``).
        definition: the function, class or module that it is, or the class that it is an instance of.
        bound: the object that a method is bound to.
        element: what a container holds.
        items: the members of a tuple or list of known length.
        sources: where a varying host value comes from.
        made: the name of the factory that made a tensor.
        constant: the value of a constant, where it is known.
        boolean: a tensor of booleans.
        fresh: made inside the captured region.
        sentinel: a tensor whose padding is negative.
        pinned: a host tensor in pinned memory.
        output: a tensor that a replay overwrites.
        partial: a view of a part.
    """

    kind: Kind = Kind.UNKNOWN
    path: str = ""
    symbol: str = ""
    definition: Any = None
    bound: Value | None = None
    element: Value | None = None
    items: tuple[Value, ...] | None = None
    sources: frozenset[str] = frozenset()
    made: str = ""
    constant: Any = None
    boolean: bool = False
    fresh: bool = False
    sentinel: bool = False
    pinned: bool = False
    output: bool = False
    partial: bool = False

    @property
    def is_tensor(self) -> bool:
        return self.kind in (Kind.DEVICE, Kind.HOST)

    @property
    def on_device(self) -> bool:
        return self.kind is Kind.DEVICE

    @property
    def varies(self) -> bool:
        return self.kind is Kind.VARYING

    @property
    def root(self) -> str:
        """The first two parts of the path: ``self.layer`` of ``self.layer.weight``."""
        return ".".join(self.path.split(".")[:2])

    def at(self, path: str) -> Value:
        """The same value, living at ``path``."""
        return replace(self, path=path)

    def holds_device_tensor(self) -> bool:
        """Whether it is a device tensor, or a container of one."""
        if self.kind is Kind.CONTAINER:
            members = (*(self.items or ()), *((self.element,) if self.element is not None else ()))
            return any(member.holds_device_tensor() for member in members)
        return self.kind is Kind.DEVICE


UNKNOWN = Value()
CONSTANT = Value(Kind.CONSTANT)
DEVICE = Value(Kind.DEVICE)
HOST = Value(Kind.HOST)


def constant(value: Any) -> Value:
    """A constant; its own value is kept where it is small and hashable."""
    return Value(Kind.CONSTANT, constant=value if isinstance(value, (int, float, str, bool)) else None)


def container(*members: Value) -> Value:
    """A container of these members."""
    return Value(Kind.CONTAINER, items=members, element=join_all(members))


def varying(*sources: str) -> Value:
    """A host value that may change between replays, with where it comes from."""
    return Value(Kind.VARYING, sources=frozenset(sources))


def join(left: Value, right: Value) -> Value:
    """What holds of a value that is one of the two."""
    if left == right:
        return left
    if left.kind is right.kind:
        if left.kind is Kind.CONSTANT:
            return CONSTANT
        if left.kind is Kind.SYMBOL:
            return left if left.symbol == right.symbol and left.definition is right.definition else UNKNOWN
        if left.kind is Kind.OBJECT and left.definition is not right.definition:
            return UNKNOWN
        return replace(
            left,
            path=left.path if left.path == right.path else "",
            element=_join_optional(left.element, right.element),
            items=left.items if left.items == right.items else None,
            sources=left.sources | right.sources,
            made=left.made if left.made == right.made else "",
            constant=None,
            boolean=left.boolean and right.boolean,
            fresh=left.fresh and right.fresh,
            sentinel=left.sentinel or right.sentinel,
            output=left.output and right.output,
            partial=left.partial and right.partial,
        )
    for one, other in ((left, right), (right, left)):
        # None or a default beside a tensor: where it is used as a tensor, it is one.
        if one.kind is Kind.CONSTANT and one.constant is None and other.kind not in (Kind.VARYING, Kind.READ):
            return other
        if one.kind is Kind.VARYING and other.kind is Kind.CONSTANT:
            return one
        if one.kind is Kind.READ and other.kind is Kind.CONSTANT:
            return one
    return UNKNOWN


def join_all(values: tuple[Value, ...] | list[Value]) -> Value:
    """What holds of a value that is one of several; unknown for none."""
    if not values:
        return UNKNOWN
    whole = values[0]
    for value in values[1:]:
        whole = join(whole, value)
    return whole


def tainted(values: list[Value]) -> Value | None:
    """A varying value if one of these varies, a read one if one was read from the device; else None."""
    values = [value.element if value.element is not None and value.element.varies else value for value in values]
    sources = frozenset().union(*(value.sources for value in values if value.varies), frozenset())
    if any(value.varies for value in values):
        return Value(Kind.VARYING, sources=sources)
    if any(value.kind is Kind.READ for value in values):
        return Value(Kind.READ)
    return None


def _join_optional(left: Value | None, right: Value | None) -> Value | None:
    if left is None or right is None:
        return left or right
    return join(left, right)
