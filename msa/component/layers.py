"""A stack of dense and sparse layers in one graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from graphcheck import Buffers, Case, Tolerance
from msa import answer
from msa.bench import Bench, Variant
from msa.component.attention import DERIVED, Attention
from msa.geometry import Geometry
from msa.stack import DENSE, LAYERS, MIX, Stack, names, projected

# Two requests of 20 pages, so that selection has something to leave out.
_BUCKET, _PAGES, _QO_LEN, _LONGEST = 2, 20, 4, 2500
_SMALL = Geometry(
    q_heads=2,
    kv_heads=1,
    index_heads=1,
    head_dim=16,
    page_size=128,
    top_k=4,
    max_batch=_BUCKET,
    max_pages=_PAGES,
    num_pages=_BUCKET * _PAGES,
    max_seq_len=_LONGEST,
    dtype=torch.float32,
)
_M3 = Geometry.m3(4, max_batch=_BUCKET, max_pages=_PAGES, num_pages=_BUCKET * _PAGES, max_seq_len=_LONGEST)


class Layers(Attention):
    """Three dense and five sparse layers, planned once, with one driver's work space for all of them.

    Both variants have the pages of MiniMax-M3; one has its heads, four ways tensor parallel. It is drawn for one case
    in eight, since on the CPU it takes many times as long as the small one.
    """

    VARIANTS = {"small": Variant(_SMALL, 2, _BUCKET), "tp4": Variant(_M3, _QO_LEN, _BUCKET)}
    often = 7
    stored = tuple(name for layer in range(LAYERS) for name in names(layer))
    derived = (*DERIVED, "scores", "page_ids", "q", "k", "v", "index_q", "index_k")
    kinds = ("normal", "ties", "zeros")
    tolerance = {"outs": Tolerance(ulps=4, absolute=1e-3)}

    def build(self, variant: Variant, device: torch.device) -> Bench:
        return Stack(variant, device, self.chosen, self.scales, self.pdl)

    def stack(self, name: str) -> Stack:
        """The tensors of a variant."""
        stack = self.benches[name]
        assert isinstance(stack, Stack)
        return stack

    def fields(self) -> dict[str, SearchStrategy[Any]]:
        return {**super().fields(), "variant": st.sampled_from(["small"] * self.often + ["tp4"])}

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        stack = self.stack(self.active)
        stack.driver.plan()
        stack.step()
        return {"outs": stack.outs, "chosen": stack.chosen}

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        stack, planned = self.stack(case.variant), self.planned(case)
        group = stack.variant.geometry.group
        stack.outs.zero_()
        stack.chosen.fill_(-1)
        q = stack.hidden[: planned.rows].clone()
        for layer, cache in enumerate(stack.layers):
            k, v, index_q, index_k = (part.contiguous() for part in projected(q, group))
            if layer < DENSE:
                out = planned.dense_layer(q, k, v, cache)
            else:
                planned.write(cache, k, v, index_k)
                page_ids = planned.select(planned.score(index_q, cache))
                stack.chosen[layer - DENSE, : planned.rows].copy_(page_ids)
                out = planned.attend_sparse(q, cache, page_ids)
            stack.outs[layer, : planned.rows].copy_(out)
            q = (q + out) * MIX
        return {"outs": stack.outs, "chosen": stack.chosen}

    def reference(
        self, before: Mapping[str, torch.Tensor], case: Case, outputs: Mapping[str, torch.Tensor]
    ) -> Mapping[str, torch.Tensor]:
        """Layer by layer, each from what the driver's own layers before it gave."""
        scene, name = self.scene(case), case.variant
        q, outs, chosen, right = before[f"hidden_{name}"], [], [], {}
        for layer in range(LAYERS):
            k, v, index_q, index_k = projected(q, scene.geometry.group)
            old = {cache: before[f"{cache}_{name}"] for cache in names(layer)}
            after = answer.caches_after(scene, old, dict(zip(old, (k, v, index_k), strict=False)))
            keys, values, *index = after.values()
            if layer < DENSE:
                outs.append(answer.dense_out(scene, keys, values, q))
            else:
                scores = answer.scores(scene, index[0], index_q)
                chosen.append(answer.confirmed(scene, outputs["chosen"][layer - DENSE], scores, 1e-3))
                outs.append(answer.sparse_out(scene, keys, values, q, outputs["chosen"][layer - DENSE]))
            right.update({f"{cache}_{name}": tensor for cache, tensor in after.items()})
            q = (q + outputs["outs"][layer]) * MIX
        return {"outs": torch.stack(outs), "chosen": torch.stack(chosen), **right}
