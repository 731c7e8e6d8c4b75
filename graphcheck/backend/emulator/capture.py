"""A capture in progress: what is recorded, what is allocated, what was refused."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch

from graphcheck.backend.emulator.device import DEVICE, caller
from graphcheck.backend.emulator.geometry import Spec, results
from graphcheck.backend.emulator.memory import Block, Handle, Pool, rounded
from graphcheck.backend.emulator.pinned import PINNED
from graphcheck.backend.emulator.tape import Constant, Node, Ref
from graphcheck.backend.emulator.tensor import DeviceTensor, wrap
from graphcheck.errors import CaptureRefused, UnknownOperator
from graphcheck.finding import Finding, Location

if TYPE_CHECKING:
    from graphcheck.backend.emulator.rules import Rule
    from graphcheck.backend.emulator.streams import Stream

_idents = itertools.count(1)


class Birth:
    """One allocation inside the region."""

    __slots__ = ("block", "freed", "generation", "nbytes", "where")

    def __init__(self, block: Block, where: Location | None) -> None:
        self.block = block
        self.generation = block.generation
        self.nbytes = block.nbytes
        self.where = where
        self.freed = False


class Touch:
    """What the recording does with a block from outside."""

    __slots__ = ("block", "generation", "nbytes", "reads", "where", "writes")

    def __init__(self, block: Block, where: Location | None) -> None:
        self.block = block
        self.generation = block.generation
        self.nbytes = block.nbytes
        self.where = where
        self.reads = False
        self.writes = False


class Capture:
    """What one capture has seen so far.

    Args:
        pool: the private pool.
        origin: the stream on which the capture began.
        generators: user generators that are registered with the graph.

    Attributes:
        streams: those that are part of the capture.
        outside: those that were given work during the capture and are not part of it.
    """

    def __init__(self, pool: Pool, origin: Stream, generators: tuple[Any, ...] = ()) -> None:
        self.ident = next(_idents)
        self.pool = pool
        self.origin = origin
        self.streams: set[Stream] = {origin}
        self.outside: set[Stream] = set()
        self.clock: dict[Stream, dict[Stream, int]] = {origin: {origin: 0}}
        self.generators = generators
        self.nodes: list[Node] = []
        self.births: list[Birth] = []
        self.current: dict[Block, Birth] = {}
        self.touched: dict[tuple[Block, int], Touch] = {}
        self.findings: list[Finding] = []
        self.refusal: CaptureRefused | None = None
        self.failure: BaseException | None = None
        self.bytes_alive = 0
        self.peak = 0
        pool.watch = self._freed

    def _freed(self, block: Block) -> None:
        birth = self.current.pop(block, None)
        if birth is not None:
            birth.freed = True
            self.bytes_alive -= rounded(birth.nbytes)

    def allocate(self, spec: Spec, where: Location | None = None) -> DeviceTensor:
        """Poisoned pool memory for one result."""
        where = where if where is not None else caller()
        block = self.pool.allocate(spec.nbytes, where)
        birth = Birth(block, where)
        self.births.append(birth)
        self.current[block] = birth
        self.bytes_alive += rounded(spec.nbytes)
        self.peak = max(self.peak, self.bytes_alive)
        return wrap(block.view(spec.dtype, spec.size, spec.stride, spec.offset), Handle(block))

    def record(self, rule: Rule, args: Any, kwargs: dict[str, Any]) -> Any:
        """Append an operator to the tape without running it; its results lie in pool memory."""
        where = caller()
        if rule.functional:
            outs = self._outputs(results(rule.func, args, kwargs), where)
            result = _tensors_of(outs, rule.tuple_result)
        else:
            outs = self._checked(rule, args, kwargs, where)
            result = rule.returned(args, kwargs, outs)
        self.append(rule, args, kwargs, outs, where)
        return result

    def _checked(self, rule: Rule, args: Any, kwargs: dict[str, Any], where: Location | None) -> Any:
        """Check the shapes of an operator that writes its arguments; the results beside them are new tensors."""
        try:
            specs = results(rule.func, args, kwargs)
        except UnknownOperator:
            if rule.extra_results:
                raise
            return None  # no meta kernel, and none needed: the arguments have their geometry already
        listed = specs if isinstance(specs, list) else [specs]
        for name, spec in zip(rule.aliased, listed, strict=False):
            given = rule.argument(name, args, kwargs) if name is not None else None
            if isinstance(given, torch.Tensor) and isinstance(spec, Spec) and tuple(spec.size) != tuple(given.shape):
                raise UnknownOperator(
                    f"{rule.func} would resize {name} from {list(given.shape)} to {list(spec.size)} inside a capture; "
                    "give it its size before the capture"
                )
        if not rule.extra_results:
            return None
        return [None if alias else self._outputs(item, where) for alias, item in zip(rule.aliased, listed, strict=True)]

    def _outputs(self, specs: Any, where: Location | None) -> Any:
        if isinstance(specs, Spec):
            return self.allocate(specs, where)
        if isinstance(specs, list):
            return [self._outputs(item, where) for item in specs]
        return specs

    def append(
        self, rule: Rule, args: Any, kwargs: dict[str, Any], outs: Any = None, where: Location | None = None
    ) -> None:
        """Append a node that writes what the rule's schema says, and ``outs``."""
        where = where if where is not None else caller()
        written = rule.written_names
        names = rule.names
        node_args = [
            self._freeze(value, position < len(names) and names[position] in written, where)
            for position, value in enumerate(args)
        ]
        node_kwargs = {name: self._freeze(value, name in written, where) for name, value in kwargs.items()}
        self.nodes.append(Node(rule.func, node_args, node_kwargs, _refs_of(outs), names, where, rule.random))
        self.tick()

    def tick(self) -> None:
        """The current stream has one more operation."""
        clock = self.clock.setdefault(DEVICE.stream, {})
        clock[DEVICE.stream] = clock.get(DEVICE.stream, 0) + 1

    def _freeze(self, value: Any, written: bool, where: Location | None) -> Any:
        if type(value) is DeviceTensor:
            block = value._handle.block
            if block.null and value.numel():
                DEVICE.refuse(
                    "GC410",
                    "an operation takes a tensor whose memory was given away: its address is null",
                    "take an alias of the storage first, or dispose of it after the last operation that uses it",
                )
            self._touch(block, written, where)
            return Ref(block, value._raw)
        if isinstance(value, torch.Tensor):
            block_of_host = PINNED.find(value)
            if block_of_host is not None and value.dim():
                self._touch(block_of_host, written, where)
                return Ref(block_of_host, value)
            return Constant(value)
        if type(value) is list or type(value) is tuple:
            return [self._freeze(item, written, where) for item in value]
        return value

    def _touch(self, block: Block, written: bool, where: Location | None) -> None:
        if block in self.current:
            return
        key = (block, block.generation)
        touch = self.touched.get(key)
        if touch is None:
            touch = self.touched[key] = Touch(block, where)
            block.users += 1
        if written:
            touch.writes = True
        else:
            touch.reads = True


def _tensors_of(outs: Any, as_tuple: bool) -> Any:
    return tuple(outs) if as_tuple and isinstance(outs, list) else outs


def _refs_of(outs: Any) -> Any:
    if type(outs) is DeviceTensor:
        return Ref(outs._handle.block, outs._raw)
    if isinstance(outs, (list, tuple)):
        return [_refs_of(item) for item in outs]
    return None
