"""What happens in and around a captured region, in order: the rules read nothing else."""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator
from dataclasses import dataclass, field

from graphcheck.lint.package import ClassInfo, FunctionInfo, ModuleInfo
from graphcheck.lint.values import UNKNOWN, Value


class Mode(str, enum.Enum):
    """When code runs, seen from the capture."""

    PREPARE = "before capture"
    REFRESH = "between replays"
    REGION = "inside the captured region"
    HOST = "around the captured region"
    OBSERVE = "after a replay"
    KEY = "choosing the graph"


@dataclass(frozen=True)
class Guard:
    """A test that holds where an event happens."""

    test: ast.expr
    positive: bool
    value: Value
    module: ModuleInfo


@dataclass(frozen=True)
class Place:
    """Where an event happens.

    Args:
        mode: when the code runs.
        module: of the source line.
        function: that the line stands in; None at module level.
        calls: the calls that lead there from the region, as (function, module, line).
        guards: the tests that hold.
        loops: how many loops are around it.
        contexts: dotted names of the context managers around it, outermost first.
        region: number of the captured region that is open; 0 for none.
        depth: calls between the beginning of the region and the line.
    """

    mode: Mode
    module: ModuleInfo
    function: FunctionInfo | None
    calls: tuple[tuple[str, str, int], ...] = ()
    guards: tuple[Guard, ...] = ()
    loops: int = 0
    contexts: tuple[str, ...] = ()
    region: int = 0
    depth: int = 0

    @property
    def captured(self) -> bool:
        return self.mode is Mode.REGION

    @property
    def owner(self) -> ClassInfo | None:
        """The class that the line stands in."""
        return self.function.owner if self.function is not None else None


@dataclass
class Event:
    """Something that the code does."""

    node: ast.AST
    place: Place


@dataclass
class Call(Event):
    """A call. ``name`` is the dotted name of a function, or ``.method`` of an object that is no module."""

    name: str
    receiver: Value
    arguments: list[Value]
    keywords: dict[str, Value]
    result: Value
    known: bool = False

    @property
    def method(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]

    @property
    def inputs(self) -> list[Value]:
        """Receiver and all arguments."""
        return [self.receiver, *self.arguments, *self.keywords.values()]


@dataclass
class Test(Event):
    """A value whose truth is asked: ``if``, ``while``, ``assert``, ``and``, ``not``, a conditional expression."""

    value: Value
    how: str
    arms: tuple[bool, bool] = (False, False)


@dataclass
class Index(Event):
    """A subscript, read or written."""

    base: Value
    index: Value
    bounds: list[Value]
    stored: Value | None = None


@dataclass
class Binary(Event):
    """An operator on two values."""

    left: Value
    right: Value
    result: Value


@dataclass
class Format(Event):
    """A value turned into text."""

    value: Value


@dataclass
class Store(Event):
    """A value bound to a name, an attribute or an element; ``path`` is empty for what has no name."""

    path: str
    base: Value
    value: Value
    augmented: bool = False
    local: bool = False
    before: Value = UNKNOWN


@dataclass
class Loop(Event):
    """A loop over a value; ``works`` is whether its body does device work."""

    value: Value
    works: bool = False


@dataclass
class Enter(Event):
    """A context manager is entered."""

    name: str
    value: Value


@dataclass
class Leave(Event):
    """A context manager is left."""

    name: str
    value: Value


@dataclass
class Open(Event):
    """A captured region begins."""

    graph: Value
    keywords: dict[str, Value]
    number: int
    how: str = "graph"


@dataclass
class Close(Event):
    """A captured region ends; ``early`` where a return leaves it on the way."""

    number: int
    early: bool = False


@dataclass
class Read(Event):
    """A name or attribute is read."""

    path: str
    value: Value


@dataclass
class Return(Event):
    """A function of the region or around it returns a value."""

    value: Value
    depth: int


@dataclass
class Divided(Event):
    """Code that asks whether a stream is capturing, and what either side computes.

    Args:
        captured: what the captured side computes, in words.
        skipped: what only eager execution computes, in words.
        both: both sides compute the same names.
    """

    captured: tuple[str, ...]
    skipped: tuple[str, ...]
    both: bool


@dataclass
class Log:
    """Everything that one region and the code around it do.

    Args:
        title: the region, in words.
        module: where it stands.
        node: what is reported where no line fits better.
        function: the captured function, or the one around the region.
        component: the class, for a component.
        owner: the class of the function.
        contract: keywords of the `capture_safe` decorator.
        events: in order.
        key_sources: parts of a case that choose the graph.
        keyed: the component chooses its graph by a key of its own.
        buffers: names of buffers and their values, as `allocate` made them.
        exhausted: the walk ended before the region did.
        cut: calls of the region lie too deep to be followed.
        allowing: the decorator that allows codes.
    """

    title: str
    module: ModuleInfo
    node: ast.AST
    function: FunctionInfo | None = None
    component: ClassInfo | None = None
    owner: ClassInfo | None = None
    contract: dict[str, Value] | None = None
    allowed: tuple[str, ...] = ()
    events: list[Event] = field(default_factory=list)
    key_sources: frozenset[str] = frozenset()
    buffers: dict[str, Value] = field(default_factory=dict)
    keyed: bool = False
    exhausted: bool = False
    cut: bool = False
    allowing: ast.AST | None = None

    def calls(self, *modes: Mode) -> Iterator[Call]:
        """Calls made in these modes; in the region where none is given."""
        wanted = modes or (Mode.REGION,)
        return (event for event in self.events if isinstance(event, Call) and event.place.mode in wanted)

    def stores(self, *modes: Mode) -> Iterator[Store]:
        """Assignments made in these modes; in the region where none is given."""
        wanted = modes or (Mode.REGION,)
        return (event for event in self.events if isinstance(event, Store) and event.place.mode in wanted)

    def read_paths(self) -> set[str]:
        """Paths that the region reads, with all their beginnings."""
        paths: set[str] = set()
        for event in self.events:
            if isinstance(event, Read) and event.place.captured and event.path:
                parts = event.path.split(".")
                paths.update(".".join(parts[:length]) for length in range(1, len(parts) + 1))
        return paths

    def changes(self, value: Value) -> bool:
        """Whether a value may change between replays of one graph: it varies, and the graph key does not hold it."""
        return value.varies and not (value.sources and value.sources <= self.key_sources)
