"""The one emulated device: what is capturing, which stream is current, who watches."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from graphcheck.errors import CaptureRefused
from graphcheck.finding import Finding, Location, Severity, is_machinery

if TYPE_CHECKING:
    from graphcheck.backend.emulator.capture import Capture
    from graphcheck.backend.emulator.streams import Stream


class Device:
    """State of the emulated device.

    Attributes:
        capture: the capture in progress.
        stream: the current stream.
        default: the legacy default stream.
        observer: called as ``observer(func, written tensors, results)`` after each operator that runs eagerly.
        depth: how many activations are nested.
    """

    def __init__(self) -> None:
        self.capture: Capture | None = None
        self.stream: Stream = None  # type: ignore[assignment]
        self.default: Stream = None  # type: ignore[assignment]
        self.observer: Callable[[Any, Any, Any], None] | None = None
        self.depth = 0

    @property
    def recording(self) -> bool:
        """Whether what is issued now is recorded: a capture is going on and the current stream is part of it."""
        return self.capture is not None and self.stream in self.capture.streams

    def refuse(self, code: str, what: str, advice: str) -> NoReturn:
        """Refuse an operation of the capture: raised here, and again when the capture ends if it was swallowed."""
        refused = CaptureRefused(code, what, advice, caller())
        if self.capture is not None and self.capture.refusal is None:
            self.capture.refusal = refused
        raise refused

    def note(
        self, code: str, message: str, advice: str, severity: Severity = Severity.ERROR, where: Location | None = None
    ) -> None:
        """Remember a finding that does not stop the capture, the first for each code and line."""
        if self.capture is None:
            return
        where = where if where is not None else caller()
        if any(finding.code == code and finding.where == where for finding in self.capture.findings):
            return
        self.capture.findings.append(Finding(code, message, severity, where, "capture", advice=advice))


_machinery: dict[str, bool] = {}


def caller() -> Location | None:
    """The nearest calling source line that is the user's own; the answer per file is remembered."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        inside = _machinery.get(name)
        if inside is None:
            inside = _machinery[name] = is_machinery(name)
        if not inside:
            return Location(name, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None


DEVICE = Device()
