"""Nothing that no request owns is read into a result or written: stale slots, unused entries, padding rows."""

from __future__ import annotations

import torch

from msa.bench import Bench, Variant, small
from msa.scene import Scene

torch.set_num_threads(1)


def bench_for(lengths: list[int], bucket: int = 4, qo_len: int = 4) -> tuple[Bench, Scene]:
    geometry = small()
    bench = Bench(Variant(geometry, qo_len, bucket), torch.device("cpu"))
    own = [list(range(b * 10, b * 10 + 10)) for b in range(bucket)]
    scene = Scene.build(geometry, bucket, qo_len, lengths, own)
    torch.manual_seed(0)
    dead = ~scene.alive(history_only=True)
    for tensor in bench.caches().values():
        tensor.normal_().masked_fill_(dead, float("nan"))
    for tensor in bench.inputs().values():
        tensor.normal_()[scene.real_rows :].fill_(float("nan"))
    bench.driver.kv_lens[: len(lengths)] = torch.tensor(lengths, dtype=torch.int32)
    bench.driver.page_table.copy_(scene.padded())
    bench.driver.plan()
    return bench, scene


def step(bench: Bench) -> torch.Tensor:
    return bench.driver.sparse_layer(bench.q, bench.k, bench.v, bench.index_q, bench.index_k, bench.cache)


def test_poison_reaches_no_output():
    bench, _ = bench_for([0, 3, 140])
    assert not bool(step(bench).isnan().any())
    assert not bool(bench.driver.attend_dense(bench.q, bench.cache).isnan().any())


def test_rows_without_a_token_are_exactly_zero():
    bench, _ = bench_for([0, 3, 140])
    out = step(bench)
    empty = [0, 1, 2, 3, 4, 12, 13, 14, 15]
    assert not bool(out[empty].view(torch.int32).any())
    assert bool((bench.driver.page_ids[empty] == -1).all())
    assert not bool(bench.driver.attend_dense(bench.q, bench.cache)[empty].view(torch.int32).any())
    assert bool((out[5] != 0).any())


def test_only_the_steps_own_slots_and_the_dummy_page_are_written():
    bench, scene = bench_for([0, 3, 140])
    before = {name: tensor.clone() for name, tensor in bench.caches().items()}
    step(bench)
    for name, tensor in bench.caches().items():
        changed = (before[name].view(torch.int32) != tensor.view(torch.int32)).any(1, keepdim=True).any(3, keepdim=True)
        assert torch.equal(changed[:-1], scene.fresh()[:-1])


def test_scores_behind_the_valid_pages_keep_their_bits():
    bench, scene = bench_for([0, 3, 140])
    bench.driver.scores.fill_(7.5)
    step(bench)
    behind = ~scene.visible_scores().expand_as(bench.driver.scores)
    assert bool((bench.driver.scores[behind] == 7.5).all())


def test_a_later_draft_that_is_not_finite_does_not_reach_an_earlier_row():
    clean, _ = bench_for([140])
    dirty, _ = bench_for([140])
    for tensor in (dirty.k, dirty.v, dirty.index_k):
        tensor[2:].fill_(float("inf"))
        tensor[3:].fill_(float("nan"))
    for bench in (clean, dirty):
        step(bench)
        bench.dense = bench.driver.attend_dense(bench.q, bench.cache, torch.empty_like(bench.driver.out))
    assert torch.equal(clean.driver.out[:2], dirty.driver.out[:2])
    assert torch.equal(clean.dense[:2], dirty.dense[:2])
    assert bool(dirty.driver.out[3].isnan().any()) and bool(dirty.dense[3].isnan().any())


def test_a_page_outside_the_pool_takes_no_write():
    bench, _ = bench_for([140])
    bench.driver.page_table[0, 8] = 10**6
    bench.driver.plan()
    assert bench.driver.ladder.slots[:4].tolist() == [bench.driver.geometry.dummy_slot] * 4


def test_requests_may_share_a_prefix():
    geometry = small()
    own = [list(range(b * 10, b * 10 + 10)) for b in range(4)]
    scene = Scene.build(geometry, 4, 4, [140, 70, 20, 3], own, shared_pages=5)
    assert [sum(page in own[0] for page in row) for row in scene.rows] == [10, 4, 1, 0]
    written = [scene.slot(row // 4, scene.position(row)) for row in range(16) if scene.position(row) >= 0]
    assert len(set(written)) == len(written)
    shared = set(scene.rows[0]) & set(scene.rows[1])
    assert not shared & {page for page, _ in written}
