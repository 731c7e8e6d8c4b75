"""msa: the sparse-attention decode driver of MiniMax-M3, portable, with Triton kernels behind the same interface.

State is passed in, buffers are allocated once, nothing is global and nothing is read from the environment.
Importing the package is light; the names below load torch on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOMES = {
    "DecodeDriver": "msa.driver",
    "EagerBatch": "msa.eager",
    "FlatTable": "msa.paging",
    "Geometry": "msa.geometry",
    "MsaError": "msa.errors",
    "OverlapLengths": "msa.overlap",
    "PagedCache": "msa.cache",
    "Path": "msa.routing",
    "Route": "msa.routing",
    "pad_rows": "msa.paging",
    "restage": "msa.overlap",
    "route": "msa.routing",
}

__all__ = [
    "DecodeDriver",
    "EagerBatch",
    "FlatTable",
    "Geometry",
    "MsaError",
    "OverlapLengths",
    "PagedCache",
    "Path",
    "Route",
    "pad_rows",
    "restage",
    "route",
]

if TYPE_CHECKING:
    from msa.cache import PagedCache
    from msa.driver import DecodeDriver
    from msa.eager import EagerBatch
    from msa.errors import MsaError
    from msa.geometry import Geometry
    from msa.overlap import OverlapLengths, restage
    from msa.paging import FlatTable, pad_rows
    from msa.routing import Path, Route, route


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'msa' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
