"""Kernel launches that go past torch: refused by name, since a recording would silently lack them."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from graphcheck.errors import UnseenLaunch


def _refusing(kind: str, name_of: Any) -> Any:
    def launch(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise UnseenLaunch(
            f"{kind} {name_of(self)} was launched: the emulator cannot run or record it; wrap it in an operator with a "
            "plain torch implementation, or use --backend cuda"
        )

    return launch


def _triton_name(kernel: Any) -> str:
    return str(getattr(kernel, "__name__", None) or getattr(getattr(kernel, "fn", None), "__name__", kernel))


def patches() -> list[tuple[Any, str, Any]]:
    """What to replace in the libraries that are loaded: owner, attribute, value."""
    found: list[tuple[Any, str, Any]] = []
    runtime = sys.modules.get("triton.runtime")
    for name in ("JITFunction", "Autotuner", "Heuristics"):
        owner = getattr(runtime, name, None)
        if owner is not None and "run" in vars(owner):
            found.append((owner, "run", _refusing("Triton kernel", _triton_name)))
    cupy = sys.modules.get("cupy")
    for name in ("RawKernel", "ElementwiseKernel", "ReductionKernel"):
        owner = getattr(cupy, name, None)
        if owner is not None and isinstance(getattr(owner, "__flags__", 0), int) and not owner.__flags__ & (1 << 8):
            found.append((owner, "__call__", _refusing("CuPy kernel", _triton_name)))
    return found
