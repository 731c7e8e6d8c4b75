"""The operators are right: within tolerance of formulas in float64 that share no code with them."""

from __future__ import annotations

import pytest
import torch

from msa import answer
from msa.bench import Bench, Variant, small
from msa.geometry import Geometry
from msa.scene import Scene

torch.set_num_threads(1)


def run(geometry: Geometry, qo_len: int, lengths: list[int]):
    bench = Bench(Variant(geometry, qo_len, len(lengths)), torch.device("cpu"))
    torch.manual_seed(3)
    order = torch.randperm(geometry.num_pages).tolist()
    own = [order[row * geometry.max_pages : (row + 1) * geometry.max_pages] for row in range(len(lengths))]
    scene = Scene.build(geometry, len(lengths), qo_len, lengths, own)
    dead = ~scene.alive(history_only=True)
    for tensor in bench.caches().values():
        tensor.normal_().masked_fill_(dead, float("nan"))
    for tensor in bench.inputs().values():
        tensor.normal_()
    before = {name: tensor.clone() for name, tensor in bench.caches().items()}
    bench.driver.stage(lengths, scene.rows)
    bench.driver.plan()
    bench.driver.sparse_layer(bench.q, bench.k, bench.v, bench.index_q, bench.index_k, bench.cache)
    fresh = {"k_cache": bench.k, "v_cache": bench.v, "index_cache": bench.index_k}
    return bench, scene, answer.caches_after(scene, before, fresh)


M3 = Geometry.m3(4, max_batch=2, max_pages=20, num_pages=40)


@pytest.mark.parametrize(
    ("geometry", "lengths", "absolute"),
    [(small(), [0, 2, 66, 140], 2e-5), (small(), [1, 16, 17, 33], 2e-5), (M3, [2500, 130], 8e-3)],
    ids=["small", "page-edges", "m3"],
)
def test_scores_outputs_and_caches_are_right(geometry, lengths, absolute):
    bench, scene, caches = run(geometry, 4, lengths)
    seen = scene.visible_scores().expand_as(bench.driver.scores)
    right = answer.scores(scene, caches["index_cache"], bench.index_q)
    assert torch.allclose(bench.driver.scores.double()[seen], right[seen], rtol=0, atol=1e-4)
    assert torch.equal(bench.driver.page_ids, answer.page_ids(scene, bench.driver.scores))
    sparse = answer.sparse_out(scene, caches["k_cache"], caches["v_cache"], bench.q, bench.driver.page_ids)
    assert torch.allclose(bench.driver.out.double(), sparse, rtol=0, atol=absolute)
    dense = answer.dense_out(scene, caches["k_cache"], caches["v_cache"], bench.q)
    assert torch.allclose(bench.driver.attend_dense(bench.q, bench.cache).double(), dense, rtol=0, atol=absolute)
    for name, tensor in bench.caches().items():
        live = tensor[:-1], caches[name][:-1]
        assert torch.equal(*(part.contiguous().view(torch.int16) for part in live))


def test_selection_really_selects_at_the_sizes_of_m3():
    bench, scene, _ = run(M3, 4, [2500, 130])
    assert int(scene.valid_pages().max()) == 20
    assert bool((bench.driver.page_ids[:4] >= 0).all())


def test_slots_follow_the_ladder():
    bench, scene, _ = run(small(), 4, [0, 2, 66, 140])
    assert torch.equal(bench.driver.ladder.slots, answer.slots(scene))
    assert bench.driver.ladder.extents.tolist()[-4:] == [137, 138, 139, 140]
