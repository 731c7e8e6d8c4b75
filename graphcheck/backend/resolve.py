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
    if name not in BACKENDS:
        raise UsageError(f"no backend {name!r}; choose one of {', '.join(BACKENDS)}")
    if name == "cuda" or (name == "auto" and torch.cuda.is_available()):
        if not torch.cuda.is_available():
            raise EnvironmentUnable(
                "--backend cuda needs an NVIDIA GPU and a CUDA build of torch; use --backend emulator"
            )
        from graphcheck.backend.cuda import CudaBackend

        return CudaBackend()
    from graphcheck.backend.emulator import EmulatorBackend

    return EmulatorBackend()
