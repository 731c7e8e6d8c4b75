"""Which backend this machine can run."""

from __future__ import annotations

import torch

from graphcheck.backend.protocol import Backend
from graphcheck.errors import EnvironmentUnable, UsageError

BACKENDS = ("auto", "cuda", "emulator")


def resolve(name: str = "auto") -> Backend:
    """The backend called ``name``; ``auto`` takes a GPU where there is one and the emulator elsewhere.

    Raises:
        UsageError: no backend of that name.
        EnvironmentUnable: this machine cannot run it.
    """
    if wants_gpu(name):
        from graphcheck.backend.cuda import CudaBackend

        return CudaBackend()
    from graphcheck.backend.emulator import EmulatorBackend

    return EmulatorBackend()


def wants_gpu(name: str) -> bool:
    """Whether ``name`` means the GPU on this machine; creates no device context.

    Raises:
        UsageError: no backend of that name.
        EnvironmentUnable: it means a GPU, and there is none.
    """
    if name not in BACKENDS:
        raise UsageError(f"no backend {name!r}; choose one of {', '.join(BACKENDS)}")
    if name == "emulator":
        return False
    if torch.cuda.is_available():
        return True
    if name == "cuda":
        raise EnvironmentUnable("--backend cuda needs an NVIDIA GPU and a CUDA build of torch; use --backend emulator")
    return False
