"""Correcting optimistic lengths gives what a fresh build with the true lengths gives."""

from __future__ import annotations

import itertools

import pytest
import torch

from msa import DecodeDriver, FlatTable, Geometry, OverlapLengths, restage
from msa.bench import small
from msa.errors import StaleTable
from msa.overlap import correct_lengths
from msa.paging import flatten_into, unflatten_into

torch.set_num_threads(1)


def build(qo_len: int, batch: int = 3) -> tuple[DecodeDriver, list[list[int]]]:
    rows = [list(range(b * 10, b * 10 + 10)) for b in range(batch)]
    return DecodeDriver(small(), batch, qo_len, "cpu"), rows


@pytest.mark.parametrize("qo_len", [1, 2, 4])
def test_every_accepted_count_gives_the_fields_of_a_fresh_build(qo_len):
    for committed in ([0, 13, 28], [16, 17, 31], [1, 32, 100]):
        for kept in itertools.product(range(1, qo_len + 1), repeat=3):
            driver, rows = build(qo_len)
            optimistic = [length + 2 * qo_len for length in committed]
            driver.stage(optimistic, rows)
            overlap = OverlapLengths(3, qo_len, "cpu")
            overlap.stage(optimistic)
            overlap.accepted.copy_(torch.tensor(kept))
            fresh, _ = build(qo_len)
            fresh.stage([length + k + qo_len for length, k in zip(committed, kept, strict=True)], rows)
            fresh.plan()
            for _ in range(2):  # once and twice are the same
                overlap.correct(driver)
                for name, tensor in fresh.tensors().items():
                    if name != "page_table":
                        assert torch.equal(driver.tensors()[name], tensor), name


def test_correction_then_attention_equals_a_fresh_build_bit_for_bit():
    driver, rows = build(4)
    fresh, _ = build(4)
    torch.manual_seed(0)
    from msa import PagedCache

    caches = [PagedCache.allocate(small(), "cpu") for _ in range(2)]
    for first, second in zip(*((c.k, c.v, c.index_k) for c in caches), strict=True):
        second.copy_(first.normal_())
    step = [torch.randn(12, heads, 32) for heads in (8, 2, 2, 2, 1)]
    for kept in itertools.product(range(1, 5), repeat=3):
        true = [length + k + 4 for length, k in zip([28, 13, 60], kept, strict=True)]
        driver.stage([36, 21, 68], rows)
        overlap = OverlapLengths(3, 4, "cpu")
        overlap.stage([36, 21, 68])
        overlap.accepted.copy_(torch.tensor(kept))
        overlap.correct(driver)
        fresh.stage(true, rows)
        fresh.plan()
        outs = [d.sparse_layer(*step, cache).clone() for d, cache in zip((driver, fresh), caches, strict=True)]
        assert torch.equal(*(out.view(torch.int32) for out in outs))
        assert torch.equal(caches[0].k, caches[1].k)


def test_the_host_vector_of_one_correction():
    """Committed 118, three drafts, two of the previous four kept: staged 126, true 124, positions 120 to 123."""
    sizes = Geometry.m3(1, max_batch=1, max_pages=2, num_pages=2)
    driver = DecodeDriver(sizes, 1, 4, "cpu")
    driver.stage([126], [[0, 1]])
    overlap = OverlapLengths(1, 4, "cpu")
    overlap.stage([126])
    overlap.accepted.fill_(2)
    overlap.correct(driver)
    assert driver.kv_lens.tolist() == [124]
    assert driver.ladder.qo_offsets.tolist() == [120, 121, 122, 123]


def test_padding_rows_and_short_rows_stay_at_zero():
    lens = torch.full((3,), 9, dtype=torch.int32)
    staged = torch.tensor([0, 1, 2], dtype=torch.int32)
    correct_lengths(lens, staged, torch.tensor([1, 1, 9], dtype=torch.int32), 4)
    assert lens.tolist() == [0, 0, 2]


ROWS = [[7, 2, 5], [1, 9], [4, 8]]
M3 = Geometry.m3(4, max_batch=3, max_pages=3, num_pages=10)


def test_a_mixed_batch_that_loses_a_page_is_restaged_from_one_source():
    """Context 300; generation true 122 after 3 rejected, and true 200 after 1 rejected, four query tokens each."""
    optimistic, rejected = [300, 122 + 4 + 3, 200 + 1], [0, 3, 1]
    staged = FlatTable.stage(ROWS, optimistic, M3, "cpu")
    assert staged.indptr == (0, 3, 5, 7)
    batch = restage(M3, [300, 4, 4], optimistic, rejected, ROWS, "cpu")
    assert [request.kv_len for request in batch.requests] == [300, 126, 200]
    assert [request.width for request in batch.requests] == [3, 1, 2]
    assert [request.page_table[0].tolist() for request in batch.requests] == [[7, 2, 5], [1], [4, 8]]


def test_a_table_of_other_lengths_is_refused():
    with pytest.raises(StaleTable, match="request 1: 2 pages for 1"):
        FlatTable.stage(ROWS, [300, 129, 201], M3, "cpu").check([300, 126, 200], M3)


def test_the_flat_form_on_the_device_is_that_of_the_host():
    table = torch.tensor([[7, 2, 5], [1, 9, -1], [4, 8, -1]], dtype=torch.int32)
    flat, pointers = torch.full((10,), -1, dtype=torch.int32), torch.empty(4, dtype=torch.int32)
    for lengths in ([300, 129, 201], [300, 126, 200], [0, 1, 128], [384, 256, 0]):
        flatten_into(flat, pointers, table, torch.tensor(lengths, dtype=torch.int32), 128)
        host = FlatTable.stage(ROWS, lengths, M3, "cpu")
        assert tuple(pointers.tolist()) == host.indptr
        assert flat[: host.indptr[-1]].tolist() == host.kv_indices.tolist()
        padded = torch.empty_like(table)
        unflatten_into(padded, flat, pointers)
        for request, length in enumerate(lengths):
            count = M3.pages(length)
            assert padded[request, :count].tolist() == ROWS[request][:count]
