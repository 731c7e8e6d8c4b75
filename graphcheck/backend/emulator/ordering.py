"""Order outside captures: which work a stream comes after, and what is touched without an order."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from graphcheck.backend.emulator.device import DEVICE, caller
from graphcheck.finding import Finding, Location, is_machinery

if TYPE_CHECKING:
    from graphcheck.backend.emulator.memory import Block
    from graphcheck.backend.emulator.streams import Stream

Clock = dict[Any, int]
_WAIT = "wait explicitly (stream.wait_stream, stream.wait_event), or use one stream for copy, replay and read"


class Mark:
    """One piece of work: the stream it was issued on, its number there, and the user's line."""

    __slots__ = ("stream", "tick", "where")

    def __init__(self, stream: Stream, tick: int, where: Location | None) -> None:
        self.stream = stream
        self.tick = tick
        self.where = where


class Order:
    """What each stream is known to come after, as vector clocks; the host counts as one that all streams follow.

    Work on the emulated device runs when it is issued, so a missing order changes no bits here: it is only noted.

    Attributes:
        clocks: for each stream, the number of the last operation of every stream that it comes after.
        host: the same for the host, which waits by synchronising.
        writes: the last writer of each block, kept where that was not the default stream.
        readers: host memory that queued work still reads, with that work.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Nothing is queued."""
        self.clocks: dict[Stream, Clock] = {}
        self.host: Clock = {}
        self.writes: dict[Block, Mark] = {}
        self.readers: dict[Block, Mark] = {}
        self.replayed: tuple[Mark, frozenset[Block]] | None = None
        self.pools: dict[Any, Mark] = {}
        self.found: list[Finding] = []

    def issue(self) -> Mark:
        """One more piece of work on the current stream."""
        stream = DEVICE.stream
        clock = self.clocks.setdefault(stream, {})
        _merge(clock, self.host)
        clock[stream] = clock.get(stream, 0) + 1
        return Mark(stream, clock[stream], caller())

    def position(self, stream: Stream) -> Clock:
        """What an event that is recorded now marks."""
        return dict(self.clocks.get(stream, {}))

    def wait(self, stream: Stream, clock: Clock) -> None:
        """``stream`` comes after what ``clock`` marks."""
        _merge(self.clocks.setdefault(stream, {}), clock)

    def host_waits(self, clock: Clock | None = None) -> None:
        """The host, and whatever it issues from now on, comes after ``clock``; after everything if None.

        What the harness reads to compare is no wait of the component's, nor is the filling of contents: on a GPU their
        table lies on the device.
        """
        if self.clocks and not _by_harness(_FILLING):
            self._host_follows((clock,) if clock is not None else self.clocks.values())

    def settle(self) -> None:
        """The host waits for everything, whoever asks: what ``torch.cuda.graph`` does before a capture begins."""
        self._host_follows(self.clocks.values())

    def _host_follows(self, clocks: Iterable[Clock]) -> None:
        for known in clocks:
            _merge(self.host, known)
        self.readers = {block: mark for block, mark in self.readers.items() if not _after(self.host, mark)}

    def before(self, mark: Mark) -> bool:
        """Whether the current stream comes after ``mark``."""
        if mark.stream is DEVICE.stream:
            return True
        return _after(self.clocks.get(DEVICE.stream, {}), mark) or _after(self.host, mark)

    def written(self, blocks: Iterable[Block]) -> None:
        """The current stream writes device memory outside a capture."""
        mark: Mark | None = None
        for block in blocks:
            if DEVICE.stream is DEVICE.default and block not in self.writes:
                continue
            if _by_harness():
                return
            mark = mark if mark is not None else self.issue()
            self.writes[block] = mark
            if self.replayed is not None and block in self.replayed[1] and not self.before(self.replayed[0]):
                self._found(
                    "GC206",
                    f"{block.nbytes} bytes that a replay uses are written on another stream that does not wait for it",
                    "the writing stream after the replay",
                    mark.where,
                )

    def reads_host(self, blocks: Iterable[Block]) -> None:
        """The current stream copies from pinned memory, later."""
        for block in blocks:
            self.readers[block] = self.issue()

    def host_writes(self, block: Block) -> None:
        """The host writes pinned memory."""
        mark = self.readers.pop(block, None)
        if mark is not None and not _after(self.host, mark) and not _by_harness():
            self._found(
                "GC408",
                f"the host overwrites {block.nbytes} bytes of pinned memory that a copy issued before may not have read",
                "a wait for the copy before the buffer is filled again",
                caller(),
                "wait for an event recorded after the copy, use two buffers in turn, or copy to the device at once",
            )

    def objections(self, pool: Any, blocks: Iterable[Block], name: Any) -> list[Finding]:
        """What speaks against a replay on the current stream now, and what was noted since the last one."""
        last = self.pools.get(pool)
        if last is not None and not self.before(last):
            self._found(
                "GC503",
                "a graph is replayed while another replay of the same pool may still run on another stream",
                "one replay of a pool at a time",
                None,
                "let the second stream wait for the first, or give the graphs pools of their own",
            )
        for block in blocks:
            mark = self.writes.get(block)
            if mark is not None and not self.before(mark):
                self._found(
                    "GC206",
                    f"{name(block)} is written on another stream, and the replay does not wait for it",
                    "the replay after the write",
                    mark.where,
                )
        found, self.found = self.found, []
        return sorted(found, key=lambda finding: finding.code, reverse=True)

    def replay(self, pool: Any, device: Sequence[Block], pinned: Sequence[Block]) -> None:
        """A graph is replayed on the current stream."""
        mark = self.issue()
        self.pools[pool] = mark
        self.replayed = (mark, frozenset(device))
        for block in pinned:
            self.readers[block] = mark

    def _found(self, code: str, message: str, expected: str, where: Location | None, advice: str = _WAIT) -> None:
        if all((known.code, known.where) != (code, where) for known in self.found):
            self.found.append(
                Finding(
                    code,
                    message,
                    where=where,
                    place="around the replay",
                    expected=expected,
                    got="no order between them",
                    advice=advice,
                )
            )


def _merge(clock: Clock, other: Clock) -> None:
    for stream, tick in other.items():
        if clock.get(stream, 0) < tick:
            clock[stream] = tick


def _after(clock: Clock, mark: Mark) -> bool:
    return clock.get(mark.stream, 0) >= mark.tick


def _by_harness(also: str = "") -> bool:
    """Whether the nearest code that is neither torch's nor the emulator's stages, compares or poisons for the oracle.

    Args:
        also: one more file that counts as the harness's.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not is_machinery(name):
            return False
        if name in _HARNESS or name == also or name.startswith(_ORACLE):
            return True
        frame = frame.f_back
    return False


_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_HARNESS = frozenset(os.path.join(_PACKAGE, name) for name in ("compare.py", "poison.py"))
_FILLING = os.path.join(_PACKAGE, "cases.py")
_ORACLE = os.path.join(_PACKAGE, "oracle") + os.sep
ORDER = Order()
