"""The eager API serves prefill and mixed batches, and prefill leaves what decode steps would have left."""

from __future__ import annotations

import pytest
import torch

from msa import EagerBatch, FlatTable, PagedCache
from msa.bench import small
from msa.errors import GeometryError, ShapeMismatch

torch.set_num_threads(1)
SIZES = small()


def plan(qo_lens: list[int], kv_lens: list[int], rows: list[list[int]]) -> EagerBatch:
    return EagerBatch(SIZES, qo_lens, kv_lens, FlatTable.stage(rows, kv_lens, SIZES, "cpu"), "cpu")


def new_cache() -> PagedCache:
    cache = PagedCache.allocate(SIZES, "cpu")
    for tensor in (cache.k, cache.v, cache.index_k):
        tensor.fill_(float("nan"))
    return cache


def step(count: int, seed: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(count, heads, 32, generator=draw) for heads in (8, 2, 2, 2, 1)]


def test_a_prefill_in_one_piece_equals_one_in_chunks():
    inputs, rows = step(50, 0), [[3, 1, 8, 2]]
    whole, parts = new_cache(), new_cache()
    at_once = plan([50], [50], rows).sparse_layer(*inputs, whole)
    first, pieces = 0, []
    for count in (7, 16, 1, 26):
        chunk = [tensor[first : first + count] for tensor in inputs]
        first += count
        pieces.append(plan([count], [first], rows).sparse_layer(*chunk, parts))
    assert torch.equal(at_once, torch.cat(pieces))
    assert not bool(at_once.isnan().any())


def test_a_mixed_batch_equals_its_requests_one_by_one():
    rows = [[3, 1, 8, 2], [5, 6], [9, 4, 0, 7]]
    qo_lens, kv_lens = [40, 4, 2], [40, 20, 50]
    inputs = step(46, 1)
    seen = []
    for batch in ([0, 1, 2], [2], [1], [0]):
        cache = new_cache()
        for tensor in (cache.k, cache.v, cache.index_k):
            tensor[:10].copy_(torch.randn(tensor[:10].shape, generator=torch.Generator().manual_seed(2)))
        starts = [sum(qo_lens[:b]) for b in batch]
        take = torch.cat([torch.arange(s, s + qo_lens[b]) for s, b in zip(starts, batch, strict=True)])
        planned = plan([qo_lens[b] for b in batch], [kv_lens[b] for b in batch], [rows[b] for b in batch])
        mine = [tensor[take] for tensor in inputs]
        seen.append((planned.sparse_layer(*mine, cache), planned.attend_dense(mine[0], cache)))
    for kind in (0, 1):
        assert torch.equal(seen[0][kind], torch.cat([seen[3][kind], seen[2][kind], seen[1][kind]]))


def test_a_request_without_query_tokens_is_refused():
    with pytest.raises(GeometryError, match="expected one >= 1 for each"):
        plan([0], [4], [[1]])


def test_index_keys_without_an_index_cache_are_refused():
    dense = PagedCache.allocate(SIZES, "cpu", sparse=False)
    with pytest.raises(ShapeMismatch, match="belong together"):
        q, k, v, index_q, index_k = step(1, 0)
        plan([1], [1], [[0]]).write(dense, k, v, index_k)
