"""Compilation while a region is captured: Triton's just-in-time compiler and torch.compile."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from graphcheck.finding import Finding, Location, user_location


class Compilations:
    """Notes every compilation from enter to exit."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Location | None]] = []
        self._knobs: Any = None
        self._before: Any = None
        self._callbacks: Any = None

    def __enter__(self) -> Compilations:
        knobs: Any = getattr(getattr(sys.modules.get("triton"), "knobs", None), "runtime", None)
        if hasattr(knobs, "jit_post_compile_hook"):
            self._knobs = knobs
            self._before = self._knobs.jit_post_compile_hook
            self._knobs.jit_post_compile_hook = self._triton
        handler: Any = getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
        if hasattr(handler, "register_start_callback"):
            self._callbacks = handler
            handler.register_start_callback(self._dynamo)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._knobs is not None:
            self._knobs.jit_post_compile_hook = self._before
        if self._callbacks is not None:
            self._callbacks.remove_start_callback(self._dynamo)

    def _triton(self, *arguments: Any, **described: Any) -> Any:
        kernel = getattr(described.get("fn"), "name", "a kernel")
        self.seen.append((f"Triton compiles {kernel}", user_location()))
        return self._before(*arguments, **described) if self._before is not None else None

    def _dynamo(self, *arguments: Any) -> None:
        self.seen.append(("torch.compile compiles", user_location()))

    def findings(self) -> list[Finding]:
        """One finding for the first compilation."""
        if not self.seen:
            return []
        what, where = self.seen[0]
        return [
            Finding(
                code="GC601",
                message=f"{what} inside the capture ({len(self.seen)} compilations)",
                where=where,
                expected="every variant compiled before the capture",
                got="a compilation, which may load modules, allocate and tune while the stream is capturing",
                advice="run every variant once in warm-up, with the arguments' alignment and divisibility of the capture",
            )
        ]
