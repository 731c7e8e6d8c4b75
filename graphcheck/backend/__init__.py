"""Backends: real CUDA graphs, or CUDA-graph semantics on the CPU."""

from __future__ import annotations

from graphcheck.backend.protocol import Allocation, Backend, External, Operation, Recording
from graphcheck.backend.resolve import BACKENDS, resolve, wants_gpu

__all__ = ["BACKENDS", "Allocation", "Backend", "External", "Operation", "Recording", "resolve", "wants_gpu"]
