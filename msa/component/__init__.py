"""The passes of the decode driver, and the whole step, as components that graphcheck verifies.

Each is captured through the driver and compared with the eager API, which plans on the host from true lengths, for the
real requests only. Everything that no request owns is poisoned: stale slots, unused pages, the rows behind the batch
with NaN, unused table entries with ids outside the pool.
"""

from __future__ import annotations

from graphcheck import Component
from msa.component.layers import Layers
from msa.component.passes import Dense, KvWrite, Proxy, Select, Sparse
from msa.component.steps import Decode, DecodeFp8, DecodeM3, Overlap

COMPONENTS: dict[str, type[Component]] = {
    "proxy": Proxy,
    "select": Select,
    "sparse": Sparse,
    "dense": Dense,
    "kv_write": KvWrite,
    "decode": Decode,
    "overlap": Overlap,
    "decode.m3": DecodeM3,
    "decode.fp8": DecodeFp8,
    "layers": Layers,
}
