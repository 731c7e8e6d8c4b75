"""Caches stored as fp8 e4m3 with scales, through driver and eager API."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from msa import DecodeDriver, EagerBatch, FlatTable, PagedCache
from msa.bench import small
from msa.errors import GeometryError, ShapeMismatch
from msa.geometry import FP8
from msa.ops import kv_write

torch.set_num_threads(1)
SIZES = dataclasses.replace(small(), kv_dtype=FP8, index_dtype=FP8)
SCALES = {"k_scale": 0.5, "v_scale": 0.25, "index_scale": 2.0}


def test_writes_divide_by_the_scale_and_saturate():
    cache = torch.zeros(2, 1, 16, 32).to(FP8)
    rows = torch.zeros(1, 1, 32)
    rows[0, 0, :7] = torch.tensor([1.0, -3.5, 224.0, 1000.0, -1000.0, 0.0, float("nan")])
    kv_write(cache, rows, torch.tensor([3]), 0.5)
    assert cache[0, 0, 3, :6].float().tolist() == [2.0, -7.0, 448.0, 448.0, -448.0, 0.0]
    assert bool(cache[0, 0, 3, 6].float().isnan())
    assert int(cache.float().ne(0).sum()) == 6


def test_a_step_equals_the_eager_api_and_that_of_the_values_that_are_stored():
    """Scales that are powers of two lose nothing, so a plain cache of the stored values gives the same bits."""
    lengths, rows = [140, 3, 33], [list(range(b * 10, b * 10 + 10)) for b in range(3)]
    draw = torch.Generator().manual_seed(0)
    step = [torch.randn(12, heads, 32, generator=draw) for heads in (8, 2, 2, 2, 1)]
    history = [torch.randn(41, heads, 16, 32, generator=draw) for heads in (2, 2, 1)]
    stored = [(tensor / scale).to(FP8) for tensor, scale in zip(history, SCALES.values(), strict=True)]
    cache, second = (PagedCache(*(tensor.clone() for tensor in stored), **SCALES) for _ in range(2))
    read = zip(stored, SCALES.values(), strict=True)
    plain = PagedCache(*(tensor.float() * scale for tensor, scale in read))
    driver = DecodeDriver(SIZES, 3, 4, "cpu")
    driver.stage(lengths, rows)
    driver.plan()
    out = driver.sparse_layer(*step, cache).clone()
    dense = driver.attend_dense(step[0], cache).clone()
    batch = EagerBatch(SIZES, [4] * 3, lengths, FlatTable.stage(rows, lengths, SIZES, "cpu"), "cpu")
    assert torch.equal(batch.sparse_layer(*step, second), out)
    assert torch.equal(batch.attend_dense(step[0], second), dense)
    for ours, theirs in zip((cache.k, cache.v, cache.index_k), (second.k, second.v, second.index_k), strict=True):
        assert torch.equal(ours[:-1].view(torch.uint8), theirs[:-1].view(torch.uint8))
    other = DecodeDriver(small(), 3, 4, "cpu")
    other.stage(lengths, rows)
    other.plan()
    for name, part in (("k", step[1]), ("v", step[2]), ("index_k", step[4])):
        scale = SCALES["index_scale" if name == "index_k" else f"{name}_scale"]
        kv_write(getattr(plain, name), (part / scale).to(FP8).float() * scale, other.ladder.slots)
    other.score(step[3], plain)
    other.select()
    assert torch.equal(other.page_ids, driver.page_ids)
    assert torch.equal(other.attend_sparse(step[0], plain), out)
    assert torch.equal(other.attend_dense(step[0], plain), dense)


def test_scales_belong_to_fp8_caches():
    with pytest.raises(ShapeMismatch, match=r"v_scale = 0\.5 for torch\.float32"):
        PagedCache.allocate(small(), "cpu", v_scale=0.5)
    with pytest.raises(ShapeMismatch, match=r"k_scale = 0\.0"):
        PagedCache.allocate(SIZES, "cpu", k_scale=0.0)


@pytest.mark.parametrize("name", ["kv_dtype", "index_dtype"])
def test_other_types_of_caches_are_refused(name):
    with pytest.raises(GeometryError, match=rf"{name} torch\.float16"):
        dataclasses.replace(small(), **{name: torch.float16})
