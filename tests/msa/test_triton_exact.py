"""Kernels whose results are exact: selection, writes, lengths; and proxy scores, exact but for the order of a sum.

On a machine with a GPU they run there; elsewhere `test_triton_in_a_child` runs this module in Triton's interpreter.
"""

from __future__ import annotations

import os

import pytest
import torch

from msa import ops as portable
from msa.bench import small
from msa.errors import GeometryError, ShapeMismatch
from msa.ladder import Ladder
from msa.overlap import correct_lengths

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("no GPU; test_triton_in_a_child runs these in Triton's interpreter", allow_module_level=True)
kernels = pytest.importorskip("msa.ops.triton", reason="the kernels need triton, which is not installed")
proxy_score = pytest.importorskip("msa.ops.triton.proxy_score")

torch.set_num_threads(1)
DEVICE = "cpu" if INTERPRETED else "cuda"
NAN, INF = float("nan"), float("inf")


def on(*values, dtype=torch.int32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def equal_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[first.element_size()]
    return torch.equal(first.contiguous().view(kind), second.contiguous().view(kind))


def chosen(scores: torch.Tensor, valid: torch.Tensor, top_k: int, init: int, local: int):
    ids = torch.full((valid.shape[0], scores.shape[0], top_k), -7, dtype=torch.int32, device=DEVICE)
    expected = ids.clone()
    kernels.select_pages(ids, scores, valid, init, local)
    portable.select_pages(expected, scores, valid, init, local)
    return ids, expected


@pytest.mark.parametrize(
    ("width", "top_k", "init", "local"),
    [(3, 4, 0, 1), (10, 4, 1, 2), (127, 16, 0, 1), (200, 4, 0, 1), (1500, 16, 1, 1)],
)
def test_selection_equals_the_portable_order(width, top_k, init, local):
    draw = torch.Generator().manual_seed(width)
    scores = torch.randn(2, 10, width, generator=draw)
    scores[0, 1] = 1.0  # all equal
    scores[0, 2, ::2], scores[0, 2, 1::2] = 0.0, -0.0
    scores[0, 3] = NAN
    scores[0, 4, ::3] = NAN
    scores[0, 5, ::2], scores[0, 5, 1::4] = INF, -INF
    scores[0, 6] = (scores[0, 6] * 2).round()
    scores[0, 7] = -INF
    scores[0, 7, width // 2 :] = NAN
    scores[0, 8] = torch.randint(-(2**31), 2**31 - 1, (width,), generator=draw).to(torch.int32).view(torch.float32)
    valid = torch.randint(0, width + 1, (10,), generator=draw).to(torch.int32)
    valid[1:9] = width
    valid[9] = 0
    scores[1] = scores[0].flip(0)
    beyond = torch.arange(width) >= valid[:, None]
    scores.masked_fill_(beyond, NAN)
    scores[:, :, 1::2].masked_fill_(beyond[:, 1::2], INF)
    ids, expected = chosen(scores.to(DEVICE), valid.to(DEVICE), top_k, init, local)
    assert torch.equal(ids, expected)


def test_selection_around_the_limits_of_its_tiers():
    scores = (torch.randn(1, 12, 1100, generator=torch.Generator().manual_seed(1)) * 3).round().to(DEVICE)
    valid = on(0, 1, 3, 4, 5, 15, 16, 17, 127, 128, 129, 1025)
    ids, expected = chosen(scores, valid, 16, 0, 1)
    assert torch.equal(ids, expected)


def test_selection_among_the_most_pages():
    scores = torch.randn(1, 2, 8192, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    scores[0, 1] = scores[0, 1].mul(4).round()
    ids, expected = chosen(scores, on(8192, 8191), 16, 0, 1)
    assert torch.equal(ids, expected)


def test_selection_refuses_a_wider_table():
    ids = torch.empty(1, 1, 4, dtype=torch.int32, device=DEVICE)
    with pytest.raises(GeometryError, match="at most 8192"):
        kernels.select_pages(ids, torch.zeros(1, 1, 8193, device=DEVICE), on(1), 0, 1)


def score_case(qo_len: int, lengths: list[int], dtype=torch.float32, heads: int = 2):
    """Inputs of a proxy score with NaN in every stale slot and unusable table entries."""
    width, page_size, dim, batch = 10, 16, 32, len(lengths)
    draw = torch.Generator().manual_seed(qo_len)
    query = torch.randn(batch * qo_len, heads, dim, generator=draw).to(dtype)
    cache = torch.full((batch * width + 1, 1, page_size, dim), NAN, dtype=dtype)
    table = torch.randperm(batch * width, generator=draw).view(batch, width).int()
    for request, length in enumerate(lengths):
        for position in range(length):
            cache[table[request, position // page_size], 0, position % page_size] = torch.randn(dim, generator=draw).to(
                dtype
            )
        table[request, -(-length // page_size) :] = on(-1, 10**9, -(2**31)).cpu()[request % 3]
    scores = torch.full((heads, batch * qo_len + 3, width), -123.0)
    return [tensor.to(DEVICE) for tensor in (scores, query, cache, table, torch.tensor(lengths, dtype=torch.int32))]


@pytest.mark.parametrize(
    ("qo_len", "lengths", "dtype"),
    [
        (1, [0, 1, 16, 17, 160], torch.float32),
        (4, [0, 2, 18, 66], torch.float32),
        (8, [160, 5], torch.float32),
        (4, [33], torch.bfloat16),
    ],
)
def test_scores_equal_the_portable_ones(qo_len, lengths, dtype):
    scores, query, cache, table, kv_lens = score_case(qo_len, lengths, dtype)
    expected = scores.clone()
    kernels.proxy_score(scores, query, cache, table, kv_lens, qo_len)
    portable.proxy_score(expected, query, cache, table, kv_lens, qo_len)
    assert torch.equal(scores == -123.0, expected == -123.0)
    assert torch.allclose(scores, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("programs", [1, 8, 16])
def test_programs_that_take_several_pages_give_the_same_scores(monkeypatch, programs):
    """Requests of no page, of fewer than programs, and of a number that they do not share evenly."""
    scores, query, cache, table, kv_lens = score_case(4, [0, 2, 66, 150], torch.float32)
    expected = scores.clone()
    kernels.proxy_score(expected, query, cache, table, kv_lens, 4)
    monkeypatch.setattr(proxy_score, "SINGLE_PROGRAMS", 0)
    monkeypatch.setattr(proxy_score, "PROGRAMS", programs)
    kernels.proxy_score(scores, query, cache, table, kv_lens, 4)
    assert torch.equal(scores == -123.0, expected == -123.0)
    assert torch.allclose(scores, expected, rtol=0, atol=1e-6 if INTERPRETED else 0)


def test_a_live_nan_is_the_score_of_its_page_for_the_rows_that_see_it():
    scores, query, cache, table, kv_lens = score_case(4, [66])
    cache[table[0, 1], 0, 3] = NAN
    cache[table[0, 4], 0, 0] = NAN  # position 64: rows 2 and 3 only
    expected = scores.clone()
    kernels.proxy_score(scores, query, cache, table, kv_lens, 4)
    portable.proxy_score(expected, query, cache, table, kv_lens, 4)
    assert torch.equal(scores.isnan(), expected.isnan()) and int(scores.isnan().sum()) == 2 * (4 + 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_writes_equal_the_portable_ones(dtype):
    draw = torch.Generator().manual_seed(0)
    pair = torch.full((7, 2, 16, 32), NAN, dtype=dtype, device=DEVICE)
    index = torch.full((7, 1, 16, 32), NAN, dtype=dtype, device=DEVICE)
    rows = [torch.randn(5, heads, 32, generator=draw).to(dtype).to(DEVICE) for heads in (2, 2, 1)]
    slots = on(0, 15, 16, 95, 50, dtype=torch.int64)
    got, expected = [pair.clone(), pair.clone(), index.clone()], [pair.clone(), pair.clone(), index.clone()]
    kernels.kv_write_layer(*got, *rows, slots)
    for cache, row in zip(expected, rows, strict=True):
        portable.kv_write(cache, row, slots)
    assert all(equal_bits(*both) for both in zip(got, expected, strict=True))
    single = pair.clone()
    kernels.kv_write(single, rows[0], slots)
    assert equal_bits(single, expected[0])
    dense = [pair.clone(), pair.clone()]
    kernels.kv_write_layer(*dense, None, *rows[:2], None, slots)
    assert equal_bits(dense[0], expected[0]) and equal_bits(dense[1], expected[1])


def test_fp8_writes_divide_by_the_scale_and_saturate():
    cache = torch.zeros(2, 1, 16, 32, device=DEVICE).to(torch.float8_e4m3fn)
    rows = torch.zeros(1, 1, 32, device=DEVICE)
    rows[0, 0, :6] = torch.tensor([1.0, -3.5, 224.0, 1000.0, -1000.0, 0.0], device=DEVICE)
    kernels.kv_write(cache, rows, on(3, dtype=torch.int64), scale=0.5)
    assert cache[0, 0, 3, :6].float().tolist() == [2.0, -7.0, 448.0, 448.0, -448.0, 0.0]
    assert int(cache.float().ne(0).sum()) == 5


FIELDS = ("qo_offsets", "extents", "valid_pages", "slots")


@pytest.mark.parametrize("qo_len", [1, 3, 4, 8])
def test_lengths_and_slots_equal_the_portable_plan(qo_len):
    lengths = [0, 1, qo_len - 1, qo_len, 15, 16, 17, 31, 32, 33, 66, 160, 159, 161, 200, 2]
    sizes = small(bucket=16)
    table = torch.randperm(160, generator=torch.Generator().manual_seed(3)).view(16, 10).int()
    # Entries that no row needs, and three that rows need but that are no pages of the pool.
    table[2, 1:], table[4, 1:], table[11, 9], table[10, 4], table[8, 1] = -1, 10**9, 160, -9, 2**31 - 1
    kv_lens, table = on(*lengths), table.to(DEVICE)
    planned, expected = (Ladder(sizes, 16, qo_len, DEVICE) for _ in range(2))
    kernels.plan_ladder(
        kv_lens, table, planned.row_requests, planned.steps, *(getattr(planned, name) for name in FIELDS), sizes
    )
    expected.plan(kv_lens, table)
    assert all(torch.equal(getattr(planned, name), getattr(expected, name)) for name in FIELDS)


def test_correction_and_plan_in_one_launch_equal_the_two_steps():
    sizes = small(bucket=4)
    table = torch.randperm(40, generator=torch.Generator().manual_seed(3)).view(4, 10).int().to(DEVICE)
    planned, expected = (Ladder(sizes, 4, 4, DEVICE) for _ in range(2))
    for kept in ([4, 4, 4, 4], [1, 2, 3, 4], [1, 1, 1, 1], [0, 7, 2, 1]):
        staged, accepted = on(0, 18, 67, 2), on(*kept)
        got, true = on(9, 9, 9, 9), on(0, 0, 0, 0)
        correct_lengths(true, staged, accepted, 4)
        expected.plan(true, table)
        for _ in range(2):
            fields = (getattr(planned, name) for name in FIELDS)
            kernels.correct_and_plan(got, staged, accepted, table, *fields, sizes)
            assert torch.equal(got, true) and torch.equal(staged, on(0, 18, 67, 2))
            assert all(torch.equal(getattr(planned, name), getattr(expected, name)) for name in FIELDS)


def test_views_that_would_compile_another_variant_are_refused():
    scores, query, cache, table, kv_lens = score_case(1, [20])
    store = torch.empty(query.numel() + 1, device=DEVICE)
    with pytest.raises(ShapeMismatch, match=r"index_q .*modulo 16: 4"):
        kernels.proxy_score(scores, store[1:].view(query.shape), cache, table, kv_lens, 1)
