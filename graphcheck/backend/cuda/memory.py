"""Allocations made while a region is captured, from the allocator's own history, with the user's source lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from graphcheck.backend.cuda.features import features
from graphcheck.backend.protocol import Allocation
from graphcheck.finding import Location, is_machinery
from graphcheck.poison import poison

_FACTORIES = ("empty", "new_empty", "empty_like", "empty_strided")


class History:
    """The allocator's requests between `start` and `stop`."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []

    def start(self) -> None:
        """Begin to record, after the capture's own two requests (generator seed and offset)."""
        if features().history:
            torch.cuda.memory._record_memory_history(
                enabled="all", context="alloc", stacks="python", max_entries=200_000, clear_history=True
            )

    def stop(self) -> None:
        """Take the events and switch the recording off."""
        if features().history:
            device = torch.cuda.current_device()
            self._events = list(torch.cuda.memory._snapshot(device)["device_traces"][device])
            torch.cuda.memory._record_memory_history(enabled=None)

    def allocations(self, outputs: Mapping[str, torch.Tensor], tensors: set[int]) -> list[Allocation]:
        """What was asked for, classed by what became of it.

        Args:
            outputs: what the region returned.
            tensors: addresses of storages that operators of the region gave out.
        """
        returned = {tensor.untyped_storage().data_ptr() for tensor in outputs.values()}
        freed: set[int] = set()
        found: list[Allocation] = []
        for event in reversed(self._events):
            if event["action"] in ("free_requested", "free"):
                freed.add(event["addr"])
            elif event["action"] == "alloc":
                address = event["addr"]
                if address in freed:
                    kind = "transient"
                    freed.discard(address)
                elif address in returned:
                    kind = "output"
                else:
                    kind = "escaping" if address in tensors else "workspace"
                found.append(Allocation(event["size"], kind, _line(event.get("frames", []))))
        return found[::-1]

    def peak(self) -> int:
        """The most memory of these requests alive at one time, bytes."""
        alive: dict[int, int] = {}
        total = peak = 0
        for event in self._events:
            if event["action"] == "alloc":
                alive[event["addr"]] = event["size"]
                total += event["size"]
                peak = max(peak, total)
            elif event["action"] in ("free_requested", "free"):
                total -= alive.pop(event["addr"], 0)
        return peak


def _line(frames: list[dict[str, Any]]) -> Location | None:
    for frame in frames:
        if not is_machinery(frame["filename"]):
            return Location(frame["filename"], frame["line"], frame["name"])
    return None


class _PoisonFactories(TorchDispatchMode):
    """Poisons what factories leave uninitialised, so that reading it is the same wrong answer every time."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._schema.name.removeprefix("aten::") in _FACTORIES and result.is_cuda:
            poison(result)
        return result


@contextmanager
def poisoned_factories() -> Iterator[None]:
    """Inside, uninitialised device memory holds poison."""
    with _PoisonFactories():  # type: ignore[no-untyped-call]
        yield
