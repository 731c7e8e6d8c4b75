"""What this torch, driver and set of packages can do; probed here and nowhere else."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import lru_cache

import torch

from graphcheck.errors import EnvironmentUnable


@dataclass(frozen=True)
class Features:
    """Capabilities of this machine.

    Args:
        keep_graph: torch keeps the captured graph for inspection (2.9 and later).
        bindings: cuda-bindings is installed, so nodes and kernel arguments can be read.
        history: the allocator can record its requests with Python stacks.
        raw_storage: device memory at an address can be wrapped in a tensor (guards in allocation slack).
    """

    keep_graph: bool
    bindings: bool
    history: bool
    raw_storage: bool


@lru_cache(maxsize=1)
def features() -> Features:
    """The capabilities of this machine.

    Raises:
        EnvironmentUnable: there is no GPU, or torch is too old to keep captured graphs.
    """
    if not torch.cuda.is_available():
        raise EnvironmentUnable("--backend cuda needs an NVIDIA GPU and a CUDA build of torch; use --backend emulator")
    keep_graph = hasattr(torch.cuda.CUDAGraph, "raw_cuda_graph")
    if not keep_graph:
        raise EnvironmentUnable(f"--backend cuda needs torch 2.9 or later, found {torch.__version__}; upgrade torch")
    return Features(
        keep_graph=keep_graph,
        bindings=importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("cuda.bindings") is not None,
        history=hasattr(torch.cuda.memory, "_record_memory_history"),
        raw_storage=hasattr(torch._C, "_construct_storage_from_data_pointer"),
    )
