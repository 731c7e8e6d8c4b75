"""What a driver refuses, and that its addresses never move."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from msa import DecodeDriver, Geometry, MsaError, PagedCache, pad_rows
from msa.bench import small
from msa.errors import BatchTooLarge, CapacityExceeded, GeometryError, LengthTooLarge, PageOutOfRange, ShapeMismatch

torch.set_num_threads(1)
ROWS = [list(range(b * 10, b * 10 + 10)) for b in range(4)]


def test_capacity_problems_are_value_errors_that_name_the_request():
    driver = DecodeDriver(small(), 2, 1, "cpu")
    with pytest.raises(LengthTooLarge, match="request 1: 141"):
        driver.stage([3, 141], ROWS)
    with pytest.raises(BatchTooLarge, match="3 requests for 2 rows"):
        driver.stage([1, 2, 3], ROWS)
    with pytest.raises(PageOutOfRange, match="request 0 names page 40"):
        driver.stage([3], [[40]])
    with pytest.raises(PageOutOfRange, match="has 1 of 2 pages"):
        driver.stage([20], [[4]])
    assert issubclass(CapacityExceeded, ValueError) and issubclass(LengthTooLarge, MsaError)
    assert driver.kv_lens.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kv_heads": 3, "index_heads": 3}, "does not divide"),
        ({"index_heads": 1}, "one each"),
        ({"page_size": 12}, "power of two"),
        ({"top_k": 1, "init_pages": 1}, "forced pages"),
        ({"max_qo_len": 9}, "1 to 8"),
        ({"max_pages": 0}, "max_pages = 0"),
        ({"kv_heads": 1, "index_heads": 1, "q_heads": 32}, "tile holds 16"),
        ({"dtype": torch.int32}, "floating-point"),
        ({"local_pages": 0}, "local_pages"),
    ],
)
def test_an_impossible_geometry_is_refused(change, words):
    with pytest.raises(GeometryError, match=words):
        dataclasses.replace(small(), **change)


def test_the_shards_of_m3():
    heads = {tp: Geometry.m3(tp, max_batch=1, max_pages=1, num_pages=1) for tp in (1, 2, 4, 8)}
    assert {tp: (g.q_heads, g.kv_heads, g.group) for tp, g in heads.items()} == {
        1: (64, 4, 16),
        2: (32, 2, 16),
        4: (16, 1, 16),
        8: (8, 1, 8),
    }
    with pytest.raises(GeometryError, match="tensor_parallel = 3"):
        Geometry.m3(3, max_batch=1, max_pages=1, num_pages=1)


def test_dense_width_is_the_smaller_of_table_and_engine_limit():
    assert small().dense_pages == 9 and small().capacity == 140
    assert dataclasses.replace(small(), max_seq_len=10_000).dense_pages == 10


@pytest.mark.parametrize("qo_len", [0, 9])
def test_a_decode_step_takes_one_to_eight_query_tokens(qo_len):
    with pytest.raises(GeometryError, match=r"expected 1\.\.8"):
        DecodeDriver(small(), 1, qo_len, "cpu")


def test_inputs_of_the_wrong_shape_are_refused():
    with pytest.raises(ShapeMismatch, match="page_table"):
        DecodeDriver(small(), 2, 1, "cpu", page_table=torch.zeros(2, 3, dtype=torch.int32))


def test_no_step_moves_an_address():
    driver = DecodeDriver(small(), 4, 4, "cpu")
    cache = PagedCache.allocate(small(), "cpu")
    step = [torch.zeros(16, heads, 32) for heads in (8, 2, 2, 2, 1)]
    before = {name: tensor.data_ptr() for name, tensor in driver.tensors().items()}
    for lengths in ([4], [140, 0, 3, 70], [16, 17]):
        driver.stage(lengths, ROWS)
        driver.plan()
        driver.sparse_layer(*step, cache)
    assert before == {name: tensor.data_ptr() for name, tensor in driver.tensors().items()}


def test_state_is_not_built_while_a_stream_captures(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="decode state"):
        DecodeDriver(small(), 1, 1, "cpu")


def test_a_padded_table_holds_minus_one_where_nobody_has_a_page():
    table = pad_rows(ROWS, [20, 0], small(), 3)
    assert table[:, :3].tolist() == [[0, 1, -1], [-1, -1, -1], [-1, -1, -1]]


def test_importing_the_package_loads_no_torch():
    import subprocess
    import sys

    code = "import sys, msa; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
