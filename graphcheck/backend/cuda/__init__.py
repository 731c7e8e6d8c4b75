"""The backend of real CUDA graphs."""

from __future__ import annotations

from graphcheck.backend.cuda.backend import CudaBackend

__all__ = ["CudaBackend"]
