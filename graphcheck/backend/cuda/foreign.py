"""Requests to allocators other than torch's while a region is captured: CuPy's pool, the runtime's and the driver's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from graphcheck.finding import Finding, Location, Severity, user_location
from graphcheck.graph.nodes import MEM_ALLOC, MEM_FREE, Node

POOLED, DEVICE, ORDERED, PINNED = "CuPy's pool", "device memory", "stream-ordered memory", "pinned host memory"

_FUNCTIONS = (
    ("cuda.bindings.runtime", "cudaMalloc", DEVICE),
    ("cuda.bindings.runtime", "cudaMallocManaged", DEVICE),
    ("cuda.bindings.runtime", "cudaMallocAsync", ORDERED),
    ("cuda.bindings.runtime", "cudaMallocFromPoolAsync", ORDERED),
    ("cuda.bindings.runtime", "cudaMallocHost", PINNED),
    ("cuda.bindings.runtime", "cudaHostAlloc", PINNED),
    ("cuda.bindings.driver", "cuMemAlloc", DEVICE),
    ("cuda.bindings.driver", "cuMemAllocManaged", DEVICE),
    ("cuda.bindings.driver", "cuMemAllocAsync", ORDERED),
    ("cuda.bindings.driver", "cuMemAllocFromPoolAsync", ORDERED),
    ("cuda.bindings.driver", "cuMemHostAlloc", PINNED),
    ("cuda.bindings.driver", "cuMemAllocHost", PINNED),
    ("cupy.cuda.runtime", "malloc", DEVICE),
    ("cupy.cuda.runtime", "mallocAsync", ORDERED),
    ("cupy.cuda.runtime", "hostAlloc", PINNED),
    ("cupy.cuda", "alloc_pinned_memory", PINNED),
)


@dataclass(frozen=True)
class Request:
    """One request.

    Args:
        kind: which sort of memory.
        function: what was called.
        where: the user's line.
    """

    kind: str
    function: str
    where: Location | None


class ForeignAllocations:
    """Notes every request that goes through a module attribute or CuPy's pool, from enter to exit.

    A name that the user imported from its module before cannot be seen here; its memory node can.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._stack = ExitStack()

    def __enter__(self) -> ForeignAllocations:
        for module, name, kind in _FUNCTIONS:
            found: Any = sys.modules.get(module)
            original = getattr(found, name, None)
            if original is not None:
                setattr(found, name, self._noting(original, f"{module}.{name}", kind))
                self._stack.callback(setattr, found, name, original)
        cupy = sys.modules.get("cupy")
        if cupy is not None:
            self._stack.enter_context(self._hook(cupy))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _noting(self, original: Callable[..., Any], name: str, kind: str) -> Callable[..., Any]:
        def noting(*arguments: Any, **options: Any) -> Any:
            self.requests.append(Request(kind, name, user_location()))
            return original(*arguments, **options)

        return noting

    def _hook(self, cupy: Any) -> Any:
        requests = self.requests

        class Hook(cupy.cuda.MemoryHook):  # type: ignore[misc]
            """Called by CuPy before its pool gives memory."""

            name = "graphcheck"

            def malloc_preprocess(self, **request: Any) -> None:
                requests.append(Request(POOLED, f"{request['size']} bytes", user_location()))

        return Hook()

    def first(self, *kinds: str) -> Request | None:
        """The first request of these kinds."""
        return next((request for request in self.requests if request.kind in kinds), None)

    def findings(self, nodes: list[Node]) -> list[Finding]:
        """What the requests amount to in a capture that succeeded, and the memory nodes of its graph."""
        return [*self._pooled(), *self._pinned(), *self._ordered(nodes)]

    def _pooled(self) -> list[Finding]:
        request = self.first(POOLED)
        if request is None:
            return []
        return [
            Finding(
                code="GC405",
                message=f"CuPy's pool gives memory inside the capture ({request.function})",
                where=request.where,
                expected="memory that nobody else gets while the graph can be replayed",
                got="a block that CuPy hands to the next request once the array dies, while the graph writes to it",
                advice="allocate the array before the capture and pass it in (out=)",
            )
        ]

    def _pinned(self) -> list[Finding]:
        request = self.first(PINNED)
        return [] if request is None else [pinned_finding(request.where)]

    def _ordered(self, nodes: list[Node]) -> list[Finding]:
        memory = [node for node in nodes if node.kind in (MEM_ALLOC, MEM_FREE)]
        if not memory:
            return []
        request = self.first(ORDERED)
        return [
            Finding(
                code="GC409",
                message=f"the graph holds {len(memory)} memory nodes, first {memory[0].kind} of {memory[0].nbytes} bytes",
                where=request.where if request is not None else None,
                place=f"node {memory[0].index}",
                expected="no allocation or free inside the graph",
                got=request.function if request is not None else "a stream-ordered allocation that a library makes",
                advice="allocate before the capture; stream-ordered allocation inside it is repeated at every launch",
            )
        ]


def pinned_finding(where: Location | None) -> Finding:
    """Pinned host memory asked for while capturing: it passes in torch's default mode and fails in others."""
    return Finding(
        code="GC110",
        message="pinned host memory is allocated while the stream is capturing",
        severity=Severity.WARNING,
        where=where,
        expected="no host allocation inside the region",
        got="an allocation that some capture modes refuse",
        advice="allocate pinned staging before the capture and keep it",
    )
