"""Calls that seed, read or write a generator's state while a region is captured: they act once, and in no replay."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch

from graphcheck.finding import Finding, Location, user_location

_FUNCTIONS = (
    (torch, "manual_seed"),
    (torch, "seed"),
    *(
        (module, name)
        for module in (torch.cuda, torch.cuda.random)
        for name in (
            "manual_seed",
            "manual_seed_all",
            "seed",
            "seed_all",
            "get_rng_state",
            "get_rng_state_all",
            "set_rng_state",
            "set_rng_state_all",
        )
    ),
)


class RandomState:
    """Notes such calls from enter to exit. torch 2.11 allows most of them, so that the driver says nothing."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Location | None]] = []
        self._stack = ExitStack()

    def __enter__(self) -> RandomState:
        for module, name in _FUNCTIONS:
            original = getattr(module, name, None)
            if original is not None:
                setattr(module, name, self._noting(original, name))
                self._stack.callback(setattr, module, name, original)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _noting(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def noting(*arguments: Any, **options: Any) -> Any:
            self.calls.append((name, user_location()))
            return original(*arguments, **options)

        return noting

    def findings(self) -> list[Finding]:
        """One finding for the first call."""
        if not self.calls:
            return []
        name, where = self.calls[0]
        return [
            Finding(
                code="GC802",
                message=f"the region touches the generator's state on the host ({name})",
                where=where,
                expected="a generator that only the graph's own draws advance",
                got=f"{name}, which acts while capturing and in no replay",
                advice="seed before the capture; replays advance the registered generator by themselves",
            )
        ]
