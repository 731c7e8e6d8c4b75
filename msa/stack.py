"""A stack: dense and sparse layers beside one driver, whose work space they share, as one graph runs them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from msa.bench import Bench, Variant
from msa.cache import PagedCache

DENSE, SPARSE = 3, 5
LAYERS = DENSE + SPARSE
# The mean of a layer's input and output goes to the next one, so that values keep their size. Exact in binary.
MIX = 0.5


def names(layer: int) -> tuple[str, ...]:
    """Buffer names of the caches of a layer: dense layers come first and have no index keys."""
    pair = (f"k_cache{layer}", f"v_cache{layer}")
    return pair if layer < DENSE else (*pair, f"index_cache{layer}")


def projected(hidden: torch.Tensor, group: int) -> tuple[torch.Tensor, ...]:
    """What stands for the projections of a layer: keys, values, index queries and index keys, views of ``hidden``.

    Args:
        hidden: [T, Hq, D] dtype, device.
        group: G.
    """
    return hidden[:, ::group], hidden[:, group - 1 :: group], hidden[:, group // 2 :: group], hidden[:, :1]


class Stack(Bench):
    """Eight layers of one variant: three dense, five sparse. The mean of a layer's input and output goes to the next.

    Attributes:
        layers: the cache of each layer.
        hidden: [T, Hq, D] dtype, device: input of the first layer. ``q`` carries what the layers make of it.
        outs: [8, T, Hq, D] dtype, device: output of each layer.
        chosen: [5, T, Hkv, K] int32, device: pages of each sparse layer.
    """

    def __init__(
        self,
        variant: Variant,
        device: torch.device,
        kernels: str = "portable",
        scales: Mapping[str, float] | None = None,
        pdl: bool = False,
    ) -> None:
        super().__init__(variant, device, kernels, scales, pdl)
        geometry = variant.geometry
        self.layers = [
            self.cache if layer == DENSE else PagedCache.allocate(geometry, device, sparse=layer >= DENSE)
            for layer in range(LAYERS)
        ]
        self.hidden = torch.empty_like(self.q)
        self.outs = torch.zeros(LAYERS, *self.q.shape, dtype=geometry.dtype, device=device)
        shape = (SPARSE, variant.rows, geometry.kv_heads, geometry.top_k)
        self.chosen = torch.full(shape, -1, dtype=torch.int32, device=device)

    def step(self) -> None:
        """All layers of one step, behind the planning; device only, in place."""
        driver, group = self.driver, self.variant.geometry.group
        self.q.copy_(self.hidden)
        for layer, cache in enumerate(self.layers):
            parts = projected(self.q, group)
            for target, part in zip((self.k, self.v, self.index_q, self.index_k), parts, strict=True):
                target.copy_(part)
            out = self.outs[layer]
            if layer < DENSE:
                driver.dense_layer(self.q, self.k, self.v, cache, out)
            else:
                driver.sparse_layer(self.q, self.k, self.v, self.index_q, self.index_k, cache, out)
                self.chosen[layer - DENSE].copy_(driver.page_ids)
            self.q.add_(out).mul_(MIX)

    def caches(self) -> dict[str, torch.Tensor]:
        found = {}
        for layer, cache in enumerate(self.layers):
            tensors = (cache.k, cache.v, *(() if cache.index_k is None else (cache.index_k,)))
            found.update(zip(names(layer), tensors, strict=True))
        return found

    def inputs(self) -> dict[str, torch.Tensor]:
        return {"hidden": self.hidden}

    def tensors(self) -> dict[str, torch.Tensor]:
        work = {"q": self.q, "k": self.k, "v": self.v, "index_q": self.index_q, "index_k": self.index_k}
        return {**super().tensors(), **work, "outs": self.outs, "chosen": self.chosen}
