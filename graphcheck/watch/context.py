"""The ambient context: what torch consults beside the arguments of a call, and a graph therefore freezes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

Context = dict[str, Any]


def _deterministic(mode: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(mode[0], warn_only=mode[1])


def _autocast(enabled: bool) -> None:
    torch.set_autocast_enabled("cuda", enabled)
    # Casts that were cached under the other setting must not be found again.
    torch.clear_autocast_cache()


_READ: dict[str, Callable[[], Any]] = {
    "autocast": lambda: torch.is_autocast_enabled("cuda"),
    "autocast dtype": lambda: torch.get_autocast_dtype("cuda"),
    "autocast cache": torch.is_autocast_cache_enabled,
    "grad mode": torch.is_grad_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "deterministic algorithms": lambda: (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    ),
    "default dtype": torch.get_default_dtype,
    "float32 matmul precision": torch.get_float32_matmul_precision,
    "flash attention": torch.backends.cuda.flash_sdp_enabled,
    "memory-efficient attention": torch.backends.cuda.mem_efficient_sdp_enabled,
    "math attention": torch.backends.cuda.math_sdp_enabled,
    # None before CUDA is used at all, and where a component is measured on the plain CPU.
    "current stream": lambda: torch.cuda.current_stream() if torch.cuda.is_initialized() else None,
    "current device": lambda: torch.cuda.current_device() if torch.cuda.is_initialized() else None,
}
_WRITE: dict[str, Callable[[Any], Any]] = {
    "autocast": _autocast,
    "autocast dtype": lambda dtype: torch.set_autocast_dtype("cuda", dtype),
    "autocast cache": torch.set_autocast_cache_enabled,
    "grad mode": torch.set_grad_enabled,
    "deterministic algorithms": _deterministic,
    "default dtype": torch.set_default_dtype,
    "float32 matmul precision": torch.set_float32_matmul_precision,
    "flash attention": torch.backends.cuda.enable_flash_sdp,
    "memory-efficient attention": torch.backends.cuda.enable_mem_efficient_sdp,
    "math attention": torch.backends.cuda.enable_math_sdp,
    "current stream": lambda stream: torch.cuda.set_stream(stream),
    "current device": lambda device: torch.cuda.set_device(device),
}


def snapshot() -> Context:
    """The context of this thread now."""
    return {name: read() for name, read in _READ.items()}


def changes(before: Context, after: Context) -> list[str]:
    """What differs, in words."""
    return [f"{name}: {before[name]} -> {after[name]}" for name in before if before[name] != after[name]]


def apply(context: Context) -> None:
    """Put the context back, as far as it can be set."""
    now = snapshot()
    for name, value in context.items():
        if name in _WRITE and value is not None and now[name] != value:
            _WRITE[name](value)


@contextmanager
def preserved() -> Iterator[None]:
    """What the block sets does not outlive it."""
    before = snapshot()
    try:
        yield
    finally:
        apply(before)
