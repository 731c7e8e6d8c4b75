"""What the walk over a region carries: frames, the heap of attributes, the mode, and a budget that ends it."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from graphcheck.lint import log as events
from graphcheck.lint.log import Guard, Log, Mode, Place
from graphcheck.lint.package import FunctionInfo, ModuleInfo, Package
from graphcheck.lint.values import UNKNOWN, Kind, Value

MOST_NODES = 150_000
DEEPEST = 12


class Exhausted(Exception):
    """The region is too large to be read to its end."""


class Refused(Exception):
    """This path raises while a stream is capturing, so that nothing behind it is captured."""


@dataclass
class Frame:
    """One activation of a function, or a module's top level."""

    module: ModuleInfo
    function: FunctionInfo | None = None
    env: dict[str, Value] = field(default_factory=dict)
    parent: Frame | None = None
    self_value: Value | None = None
    returns: list[Value] = field(default_factory=list)
    outer_names: set[str] = field(default_factory=set)

    @property
    def scopes(self) -> list[dict[str, Value]]:
        """Local names, then those of the functions around, nearest first."""
        found, frame = [self.env], self.parent
        while frame is not None:
            found.append(frame.env)
            frame = frame.parent
        return found


class State(ABC):
    """The state of a walk; evaluation and statements build on it."""

    def __init__(self, package: Package, log: Log) -> None:
        self.package = package
        self.log = log
        self.frame = Frame(log.module)
        self.heap: dict[str, Value] = {}
        self.globals: dict[tuple[str, str], Value] = {}
        self.initials: dict[tuple[int, str], Value] = {}
        self.closures: dict[int, tuple[FunctionInfo, Frame]] = {}
        self.mode = Mode.HOST
        self.calls: tuple[tuple[str, str, int], ...] = ()
        self.guards: tuple[Guard, ...] = ()
        self.contexts: tuple[str, ...] = ()
        self.loops = 0
        self.region = 0
        self.regions = 0
        self.region_depth = 0
        self.sentinels: set[str] = set()
        self.rebound: frozenset[str] = frozenset()
        self.silent = 0
        self.nodes = 0
        self.stack: list[int] = []
        self.memo: dict[object, Value] = {}

    @property
    def captured(self) -> bool:
        return self.mode is Mode.REGION

    @property
    def depth(self) -> int:
        """How many calls lie between the region and the line at hand."""
        return len(self.calls) - self.region_depth

    def spend(self) -> None:
        """Count one node.

        Raises:
            Exhausted: the budget is used up.
        """
        self.nodes += 1
        if self.nodes > MOST_NODES:
            raise Exhausted

    def place(self) -> Place:
        """Where the walk stands."""
        return Place(
            self.mode,
            self.frame.module,
            self.frame.function,
            self.calls,
            self.guards,
            self.loops,
            self.contexts,
            self.region,
            self.depth,
        )

    def emit(self, event: events.Event) -> None:
        """Remember an event, unless the walk only asks for a value."""
        if not self.silent:
            self.log.events.append(event)

    def shallow(self, node: ast.expr | None, frame: Frame) -> Value:
        """The value of an expression in a frame of its own, without events and without entering functions."""
        saved, self.frame = self.frame, frame
        self.silent += 1
        try:
            return self.value(node)
        except RecursionError:
            return UNKNOWN
        finally:
            self.silent -= 1
            self.frame = saved

    def parameters(self, function: FunctionInfo, given: dict[str, Value] | None) -> dict[str, Value]:
        """Values of a function's parameters by their annotations, defaults and what is given."""
        arguments = function.node.args
        env: dict[str, Value] = {}
        plain = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        for argument in plain:
            found = self.annotated(argument.annotation, function.module)
            env[argument.arg] = found.at(argument.arg)
        if arguments.vararg is not None:
            inner = self.annotated(arguments.vararg.annotation, function.module)
            env[arguments.vararg.arg] = Value(Kind.CONTAINER, element=inner)
        if arguments.kwarg is not None:
            env[arguments.kwarg.arg] = Value(Kind.CONTAINER)
        if given:
            env.update(given)
        return env

    @abstractmethod
    def value(self, node: ast.expr | None) -> Value: ...

    @abstractmethod
    def annotated(self, node: ast.expr | None, module: ModuleInfo) -> Value: ...

    @abstractmethod
    def bind(self, target: ast.expr, value: Value, node: ast.AST | None = None) -> None: ...

    @abstractmethod
    def enter(
        self,
        function: FunctionInfo,
        arguments: list[Value],
        keywords: dict[str, Value],
        bound: Value | None,
        node: ast.AST,
    ) -> Value: ...
