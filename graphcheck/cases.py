"""Cases: everything that may differ between two replays, small, printable and JSON-serialisable."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch

from graphcheck.errors import MalformedFile

CONTENT_KINDS = ("normal", "ramp", "ties", "extremes", "zeros")
TABLE_KINDS = ("identity", "reversed", "permuted", "shared")

_PERIOD = 61_091  # prime, so coprime to every stride below it and to every power of two


@runtime_checkable
class FieldValue(Protocol):
    """A case field that knows its JSON form and its simpler neighbours."""

    tag: ClassVar[str]

    def to_json(self) -> dict[str, Any]: ...

    def materialise(self) -> Any:
        """What the component sees as ``case.name``."""

    def simpler(self) -> Iterator[FieldValue]:
        """Values of the same domain that are simpler, most drastic first."""


@dataclass(frozen=True)
class Lengths:
    """Ragged lengths; the component sees an int32 CPU tensor [rows], tokens."""

    tag: ClassVar[str] = "lengths"
    values: tuple[int, ...]
    low: int = 0
    high: int = 2**31 - 1

    def to_json(self) -> dict[str, Any]:
        return {self.tag: list(self.values), "low": self.low, "high": self.high}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Lengths:
        values = tuple(int(value) for value in data[Lengths.tag])
        low, high = int(data["low"]), int(data["high"])
        if any(not low <= value <= high for value in values):
            raise MalformedFile(f"lengths {list(values)} leave their range {low}..{high}; regenerate the repro file")
        return Lengths(values, low, high)

    def materialise(self) -> torch.Tensor:
        return torch.tensor(self.values, dtype=torch.int32)

    def simpler(self) -> Iterator[Lengths]:
        for values in (tuple(self.low for _ in self.values), tuple(max(self.low, value // 2) for value in self.values)):
            if values != self.values:
                yield Lengths(values, self.low, self.high)
        for index, value in enumerate(self.values):
            for candidate in dict.fromkeys((self.low, value // 2, value - 1)):
                if self.low <= candidate < value:
                    yield Lengths((*self.values[:index], candidate, *self.values[index + 1 :]), self.low, self.high)


@dataclass(frozen=True)
class Integer:
    """A host integer in a range (batch size, accepted count, step); the component sees an int."""

    tag: ClassVar[str] = "integer"
    value: int
    low: int
    high: int

    def to_json(self) -> dict[str, Any]:
        return {self.tag: self.value, "low": self.low, "high": self.high}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Integer:
        value = Integer(int(data[Integer.tag]), int(data["low"]), int(data["high"]))
        if not value.low <= value.value <= value.high:
            raise MalformedFile(f"{value.value} leaves its range {value.low}..{value.high}; regenerate the repro file")
        return value

    def materialise(self) -> int:
        return self.value

    def simpler(self) -> Iterator[Integer]:
        for candidate in dict.fromkeys((self.low, (self.low + self.value) // 2, self.value - 1)):
            if self.low <= candidate < self.value:
                yield Integer(candidate, self.low, self.high)


@cache
def _table(kind: str) -> torch.Tensor:
    """One period of content values, float64 on the host, the same on every machine."""
    generator = np.random.Generator(np.random.PCG64(20_260_613))
    if kind == "normal":
        values = generator.standard_normal(_PERIOD)
    elif kind == "ramp":
        values = (np.arange(_PERIOD) * 7 % 251 - 125) / 32.0
    elif kind == "ties":
        values = generator.integers(-2, 3, _PERIOD).astype(np.float64)
        values[generator.integers(0, _PERIOD, _PERIOD // 8)] = -0.0
    elif kind == "extremes":
        values = generator.standard_normal(_PERIOD) * np.exp2(generator.integers(-24, 13, _PERIOD).astype(np.float64))
    elif kind == "zeros":
        values = np.zeros(_PERIOD)
    else:
        raise MalformedFile(f"no contents of class {kind!r}; known: {', '.join(CONTENT_KINDS)}")
    return torch.from_numpy(values)


@lru_cache(maxsize=64)
def _period(kind: str, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """One period of content values as ``dtype`` on ``device``, not rotated."""
    table = _table(kind)
    if not dtype.is_floating_point:
        integers = (table * 32).round().to(torch.int64)
        table = (integers % 2).bool() if dtype is torch.bool else (integers % 113)
    return table.to(dtype).to(device)


@dataclass(frozen=True)
class Contents:
    """Tensor contents by class and seed; never drawn element by element.

    The values come from a table made on the host, tiled with a prime period (so that rows cannot stand in for each
    other) and rotated by the seed: cheap, and the same bits on every backend.
    """

    tag: ClassVar[str] = "contents"
    kind: str = "normal"
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        return {self.tag: self.kind, "seed": self.seed}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Contents:
        if data[Contents.tag] not in CONTENT_KINDS:
            raise MalformedFile(f"no contents of class {data[Contents.tag]!r}; known: {', '.join(CONTENT_KINDS)}")
        return Contents(data[Contents.tag], int(data["seed"]))

    def materialise(self) -> Contents:
        return self

    def fill(self, tensor: torch.Tensor, part: int = 0) -> None:
        """Write the contents into ``tensor`` (any shape, dtype and device), in place.

        Args:
            part: which of several tensors of one case this is; different parts get different values.
        """
        if not tensor.is_contiguous():
            tensor.copy_(self.tensor(*tensor.shape, dtype=tensor.dtype, part=part))
            return
        # Tensors of the emulator live as long as its device is active, so nothing of it is kept for later.
        kept = tensor.device if type(tensor) is torch.Tensor else torch.device("cpu")
        period = _period(self.kind, tensor.dtype, kept)
        shift = (self.seed * 10_007 + part * 1_009) % _PERIOD
        flat = tensor.view(-1)
        head = min(_PERIOD - shift, flat.numel())
        whole, tail = divmod(flat.numel() - head, _PERIOD)
        flat[:head].copy_(period[shift : shift + head])
        if whole:
            flat[head : head + whole * _PERIOD].view(whole, _PERIOD).copy_(period.expand(whole, _PERIOD))
        if tail:
            flat[flat.numel() - tail :].copy_(period[:tail])

    def tensor(self, *shape: int, dtype: torch.dtype = torch.float32, part: int = 0) -> torch.Tensor:
        """The contents as a new CPU tensor of that shape."""
        made = torch.empty(shape, dtype=dtype)
        self.fill(made, part)
        return made

    def simpler(self) -> Iterator[Contents]:
        if self.seed:
            yield Contents(self.kind, 0)


@dataclass(frozen=True)
class PageTable:
    """A page table by class and seed: row r, column c holds the physical page of the row's c-th page."""

    tag: ClassVar[str] = "page_table"
    kind: str
    seed: int
    rows: int
    width: int
    pages: int

    def to_json(self) -> dict[str, Any]:
        return {self.tag: self.kind, **{key: value for key, value in asdict(self).items() if key != "kind"}}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> PageTable:
        if data[PageTable.tag] not in TABLE_KINDS:
            raise MalformedFile(f"no page table of class {data[PageTable.tag]!r}; known: {', '.join(TABLE_KINDS)}")
        return PageTable(data[PageTable.tag], *(int(data[key]) for key in ("seed", "rows", "width", "pages")))

    def materialise(self) -> PageTable:
        return self

    def tensor(self) -> torch.Tensor:
        """The table, int32 [rows, width] on the host, page ids in 0..pages-1; rows are disjoint unless ``shared``."""
        count = self.rows * self.width
        ids = np.arange(count) % self.pages
        if self.kind == "reversed":
            ids = ids[::-1].copy()
        elif self.kind in ("permuted", "shared"):
            order = np.random.Generator(np.random.PCG64(self.seed)).permutation(self.pages)
            ids = order[ids]
        table = ids.reshape(self.rows, self.width)
        if self.kind == "shared" and self.width > 1:
            prefix = 1 + self.seed % max(1, self.width // 2)
            table[:, :prefix] = table[0, :prefix]
        return torch.from_numpy(np.ascontiguousarray(table)).to(torch.int32)

    def simpler(self) -> Iterator[PageTable]:
        if self.kind != "identity":
            yield PageTable("identity", 0, self.rows, self.width, self.pages)
        if self.seed:
            yield PageTable(self.kind, 0, self.rows, self.width, self.pages)


_KINDS: tuple[type[Lengths] | type[Integer] | type[Contents] | type[PageTable], ...] = (
    Lengths,
    Integer,
    Contents,
    PageTable,
)


class Case:
    """One case: named fields, read as attributes in the form the component wants.

    ``case.lens`` of a `Lengths` field is an int32 CPU tensor; a `Contents` or `PageTable` field is itself; plain JSON
    values are themselves.
    """

    __slots__ = ("_fields", "_seen")

    def __init__(self, **fields: Any) -> None:
        self._fields = dict(fields)
        self._seen: dict[str, Any] = {}

    @property
    def fields(self) -> Mapping[str, Any]:
        """The fields by name, in their stored form."""
        return self._fields

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            value = self._fields[name]
        except KeyError:
            known = ", ".join(self._fields) or "none"
            raise AttributeError(f"the case has no field {name!r}; it has: {known}") from None
        if not isinstance(value, _KINDS):
            return value
        if name not in self._seen:
            self._seen[name] = value.materialise()
        return self._seen[name]

    def replaced(self, **fields: Any) -> Case:
        """The same case with other values (in their stored form) for some fields."""
        return Case(**{**self._fields, **fields})

    def simpler(self) -> Iterator[Case]:
        """Cases with one field made simpler."""
        for name, value in self._fields.items():
            if isinstance(value, _KINDS):
                for candidate in value.simpler():
                    yield self.replaced(**{name: candidate})

    def to_json(self) -> dict[str, Any]:
        return {
            name: value.to_json() if isinstance(value, _KINDS) else {"value": value}
            for name, value in self._fields.items()
        }

    @staticmethod
    def from_json(data: Any) -> Case:
        """The case that `to_json` described.

        Raises:
            MalformedFile: it is no such description.
        """
        if not isinstance(data, Mapping):
            raise MalformedFile(f"a case must be an object of fields, got {type(data).__name__}")
        fields: dict[str, Any] = {}
        for name, value in data.items():
            kind = next((kind for kind in _KINDS if isinstance(value, Mapping) and kind.tag in value), None)
            if kind is None and not (isinstance(value, Mapping) and "value" in value):
                raise MalformedFile(f"case field {name!r} holds {value!r}, which is no known field")
            try:
                fields[name] = value["value"] if kind is None else kind.from_json(value)
            except (KeyError, TypeError, ValueError) as error:
                raise MalformedFile(f"case field {name!r} holds {value!r}: {error}") from error
        return Case(**fields)

    def through_json(self) -> Case:
        """The case as a repro file would give it back."""
        try:
            return Case.from_json(json.loads(json.dumps(self.to_json())))
        except TypeError as error:
            raise MalformedFile(f"the case {self} cannot be written as JSON ({error}); draw plain values") from error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Case) and self._fields == other._fields

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_json(), sort_keys=True))

    def __repr__(self) -> str:
        return f"case({', '.join(f'{name}={_brief(value)}' for name, value in self._fields.items())})"


def _brief(value: Any) -> str:
    if isinstance(value, Lengths):
        return str(list(value.values))
    if isinstance(value, Integer):
        return str(value.value)
    if isinstance(value, (Contents, PageTable)):
        return f"{value.kind}#{value.seed}"
    return repr(value)
