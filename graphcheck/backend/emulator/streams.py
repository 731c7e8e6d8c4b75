"""Virtual streams and events: fork, join and what a capture refuses of them."""

from __future__ import annotations

import itertools
import time
from typing import Any, Self

from graphcheck.backend.emulator.device import DEVICE
from graphcheck.backend.emulator.host_read import ADVICE
from graphcheck.backend.emulator.ordering import ORDER

_idents = itertools.count(1)
# What CUDA_DEVICE_MAX_CONNECTIONS is unless set: more streams than that share hardware queues.
WIDEST = 8
_QUERY = "query before the capture or after the replay"


def _device(index: Any = None) -> Any:
    from graphcheck.backend.emulator.tensor import CUDA

    return CUDA


class Stream:
    """A stream that runs each operation when it is issued; order matters to captures only."""

    device_type = 1
    device_index = 0

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.stream_id = kwargs.get("stream_id", next(_idents))
        self.priority = priority
        self.cuda_stream = kwargs.get("stream_ptr", self.stream_id * 0x10)
        self._saved: list[Any] = []

    @property
    def device(self) -> Any:
        return _device()

    @property
    def _as_parameter_(self) -> Any:
        import ctypes

        return ctypes.c_void_p(self.cuda_stream)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return (0, -5)

    def wait_event(self, event: Event) -> None:
        """Whatever is issued on this stream from now on comes after what the event marks."""
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """Whatever is issued on this stream from now on comes after what the other has now."""
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        event = event if event is not None else Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        if DEVICE.capture is not None:
            DEVICE.refuse("GC101", "a stream is synchronised while a stream is capturing", ADVICE["GC101"])
        ORDER.host_waits(ORDER.position(self))

    def query(self) -> bool:
        if DEVICE.capture is not None:
            DEVICE.refuse("GC108", "a stream is queried while a stream is capturing", _QUERY)
        return True

    def __enter__(self) -> Self:
        self._saved.append(DEVICE.stream)
        DEVICE.stream = self
        return self

    def __exit__(self, *_: object) -> None:
        DEVICE.stream = self._saved.pop()

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device=cuda:0 cuda_stream={self.cuda_stream:#x}>"


class ExternalStream(Stream):
    """A stream of another library, known by its pointer."""

    def __init__(self, stream_ptr: int, device: Any = None, **kwargs: Any) -> None:
        super().__init__(device, stream_ptr=stream_ptr)


class Event:
    """An event; recorded on a capturing stream it is an edge of that capture."""

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
        **_: Any,
    ) -> None:
        self.external = external
        self.enable_timing = enable_timing
        self.cuda_event = next(_idents)
        self.device = _device()
        self._recorded = False
        self._capture: int | None = None
        self._stream: Stream | None = None
        self._clock: dict[Stream, int] = {}
        self._order: dict[Stream, int] = {}
        self._at = 0.0

    def record(self, stream: Stream | None = None) -> None:
        stream = stream if stream is not None else DEVICE.stream
        capture = DEVICE.capture
        self._recorded = True
        self._stream = stream
        self._at = time.perf_counter()
        if capture is not None and stream in capture.streams and not self.external:
            self._capture = capture.ident
            self._clock = dict(capture.clock.get(stream, {}))
        else:
            self._capture = None
            self._order = ORDER.position(stream)

    def wait(self, stream: Stream | None = None) -> None:
        stream = stream if stream is not None else DEVICE.stream
        capture = DEVICE.capture
        if not self._recorded or self.external:
            return
        if capture is not None and self._capture == capture.ident:
            if stream is DEFAULT:
                DEVICE.refuse(
                    "GC111",
                    "the legacy default stream is made to depend on the capturing one, which it cannot join",
                    "fork onto a stream of your own, and build and warm up whatever remembers its stream on the "
                    "capturing stream",
                )
            capture.streams.add(stream)
            clock = capture.clock.setdefault(stream, {})
            for other, tick in self._clock.items():
                clock[other] = max(clock.get(other, 0), tick)
        elif capture is not None and stream in capture.streams and self._stream in capture.outside:
            DEVICE.refuse(
                "GC201",
                "the capturing stream joins a side stream that was given work and never forked from it",
                "let the side stream wait for the capturing one before its first operation "
                "(side.wait_stream(torch.cuda.current_stream()))",
            )
        elif capture is not None and stream in capture.streams:
            DEVICE.refuse(
                "GC203",
                "the capturing stream waits for work that is not part of the capture",
                "wait before the capture, fork the other stream from the capturing one, or use an external event",
            )
        elif self._capture is None:
            ORDER.wait(stream, self._order)

    def query(self) -> bool:
        if DEVICE.capture is not None:
            DEVICE.refuse("GC108", "an event is queried while a stream is capturing", _QUERY)
        self._outside("queried")
        ORDER.host_waits(self._order)
        return True

    def synchronize(self) -> None:
        if DEVICE.capture is not None:
            DEVICE.refuse("GC101", "an event is synchronised while a stream is capturing", ADVICE["GC101"])
        self._outside("waited for")
        ORDER.host_waits(self._order)

    def _outside(self, what: str) -> None:
        if self._capture is not None:
            DEVICE.refuse(
                "GC205",
                f"an event that was recorded inside a capture is {what} outside",
                "use Event(external=True) inside the capture",
            )

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds between two events, of host time."""
        if DEVICE.capture is not None:
            DEVICE.refuse("GC108", "elapsed_time is asked while a stream is capturing", _QUERY)
        self._outside("timed")
        end._outside("timed")
        return (end._at - self._at) * 1e3

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {self.cuda_event:#x}>"


class StreamContext:
    """``torch.cuda.stream(s)``: the stream is current inside the block."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream
        self.saved: list[Stream] = []

    def __enter__(self) -> None:
        self.saved.append(DEVICE.stream)
        if self.stream is not None:
            DEVICE.stream = self.stream

    def __exit__(self, *_: object) -> None:
        DEVICE.stream = self.saved.pop()


def unjoined(capture: Any) -> list[Stream]:
    """Forked streams with work that the origin does not wait for."""
    joined = capture.clock.get(capture.origin, {})
    return [
        stream
        for stream in capture.streams
        if stream is not capture.origin and capture.clock.get(stream, {}).get(stream, 0) > joined.get(stream, 0)
    ]


DEFAULT = Stream(stream_id=0, stream_ptr=0)
CAPTURING = Stream()
DEVICE.stream = DEVICE.default = DEFAULT
