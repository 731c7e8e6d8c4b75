"""The bits of a row depend on that row only: not on the number of rows, its place, or what the others hold."""

from __future__ import annotations

import sys

import pytest
import torch

from eagle3 import ops
from eagle3.errors import ShapeMismatch, UnknownKernels
from eagle3.ops import Operators, plain
from eagle3.ops.linear import TILED

torch.set_num_threads(1)
PLACES = ((1, 0), (2, 1), (4, 0), (4, 3), (5, 2), (15, 14), (16, 7), (17, 16), (33, 5), (64, 63))


def equal_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    kind = {2: torch.int16, 4: torch.int32}[first.element_size()]
    return torch.equal(first.contiguous().view(kind), second.contiguous().view(kind))


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def variants(row: torch.Tensor):
    """The row among others: (all rows, its place). Others hold noise, zeros or NaN."""
    for number, (rows, place) in enumerate(PLACES):
        full = random(rows, *row.shape, seed=number).to(row.dtype)
        if number % 3 == 1:
            full.zero_()
        elif number % 3 == 2:
            full.fill_(float("nan"))
        full[place] = row
        yield full, place


def assert_invariant(function, row: torch.Tensor) -> None:
    alone = function(row.unsqueeze(0))[0]
    assert alone.isfinite().all()
    for full, place in variants(row):
        assert equal_bits(function(full)[place], alone), (full.shape[0], place)


@pytest.mark.parametrize("tiled", sorted({False, TILED}), ids={False: "rows", True: "tiles"}.get)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("depth", "columns"), [(256, 704), (704, 256), (768, 256), (256, 260), (100, 37), (33, 7), (5, 1), (1024, 48)]
)
def test_linear(depth, columns, dtype, tiled, monkeypatch):
    monkeypatch.setattr(sys.modules["eagle3.ops.linear"], "TILED", tiled)
    weight, bias = random(columns, depth, seed=1, dtype=dtype), random(columns, seed=2, dtype=dtype)
    assert_invariant(lambda x: ops.linear(x, weight, bias), random(depth, seed=3, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [256, 96, 33, 6144])
def test_rms_norm(width, dtype):
    weight = random(width, seed=1, dtype=dtype)
    assert_invariant(lambda x: ops.rms_norm(x, weight, 1e-5), random(width, seed=3, dtype=dtype))


@pytest.mark.parametrize("width", [704, 33, 7])
def test_swiglu(width):
    row = random(2 * width, seed=3) * 5
    assert_invariant(lambda x: ops.swiglu(x[:, :width], x[:, width:]), row)


@pytest.mark.parametrize(("heads", "dim", "rotated"), [(2, 32, 32), (3, 10, 6)])
def test_rope(heads, dim, rotated):
    table = ops.rope_table(50, rotated, 10000.0)
    assert_invariant(
        lambda x: ops.rope(x, torch.full((x.shape[0],), 31), table), random(heads, dim, seed=3, dtype=torch.bfloat16)
    )


def test_plain_linear_is_what_the_promise_is_against():
    """BLAS itself gives a row other bits in other company, else these tests could not fail."""
    with pytest.raises(AssertionError):
        for depth, columns in ((256, 704), (704, 256), (100, 37), (33, 7), (1024, 48)):
            weight = random(columns, depth, seed=1)
            assert_invariant(lambda x, weight=weight: plain.linear(x, weight), random(depth, seed=3))


@pytest.mark.parametrize("rows", [0, 1, 16, 21])
def test_results_agree_with_float64(rows):
    x, weight, bias = random(rows, 96), random(40, 96, seed=1), random(40, seed=2)
    exact = plain.linear(x.double(), weight.double(), bias.double())
    torch.testing.assert_close(ops.linear(x, weight, bias).double(), exact, rtol=0, atol=1e-4)
    gain = random(96, seed=4)
    torch.testing.assert_close(
        ops.rms_norm(x, gain, 1e-5).double(), plain.rms_norm(x.double(), gain, 1e-5), rtol=1e-5, atol=1e-5
    )
    gate, up = x.split(48, 1)
    torch.testing.assert_close(
        ops.swiglu(gate, up).double(), plain.swiglu(gate.double(), up.double()), rtol=1e-5, atol=1e-6
    )
    heads, positions = x.view(rows, 3, 32), torch.arange(rows)
    table = ops.rope_table(30, 16, 10000.0)
    torch.testing.assert_close(
        ops.rope(heads, positions, table).double(), plain.rope(heads.double(), positions, table), rtol=0, atol=1e-6
    )
    assert torch.equal(ops.rope(heads, positions, table)[..., 16:], heads[..., 16:])


def test_linear_rounds_once_to_the_dtype_that_is_asked_for():
    x, weight = random(3, 64, dtype=torch.bfloat16), random(20, 64, seed=1, dtype=torch.bfloat16)
    wide = ops.linear(x, weight, dtype=torch.float32)
    assert wide.dtype is torch.float32
    assert equal_bits(wide, ops.linear(x.float(), weight.float()))
    assert equal_bits(wide.to(torch.bfloat16), ops.linear(x, weight))


def test_rope_keeps_scores_a_function_of_distance_and_takes_any_padding_position():
    table = ops.rope_table(64, 32, 10000.0)
    q, k = random(1, 1, 32), random(1, 1, 32, seed=1)
    scores = [
        (ops.rope(q, torch.tensor([p]), table) * ops.rope(k, torch.tensor([p - 5]), table)).sum() for p in (5, 30, 63)
    ]
    torch.testing.assert_close(torch.stack(scores), scores[0].expand(3), rtol=1e-4, atol=1e-4)
    out_of_range = ops.rope(q.expand(2, 1, 32), torch.tensor([-1, 64], dtype=torch.int32), table)
    assert equal_bits(out_of_range[0], q[0])
    assert equal_bits(out_of_range[1:], ops.rope(q, torch.tensor([63]), table))


def test_scaled_rope_tables():
    whole = ops.rope_table(64, 16, 500.0)
    half = ops.rope_table(64, 16, 500.0, {"rope_type": "linear", "factor": 2.0})
    assert torch.equal(half[::2], whole[:32])
    fields = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    smooth = ops.rope_table(64, 16, 500.0, {"rope_type": "llama3", **fields})
    # The fastest frequency turns 32 / (2 pi) = 5.1 times in the original length, the slowest not once.
    assert torch.equal(smooth[:, 0], whole[:, 0])
    assert torch.equal(smooth[::8, 7], whole[:8, 7])
    with pytest.raises(ValueError, match=r"type 'yarn'.*5 rotated dims"):
        ops.rope_table(4, 5, 1.0, {"type": "yarn"})


def test_shapes_are_known_without_a_device():
    x = torch.empty(3, 64, device="meta", dtype=torch.bfloat16)
    assert ops.linear(x, torch.empty(20, 64, device="meta")).shape == (3, 20)
    assert ops.rms_norm(x, torch.empty(64, device="meta"), 1e-5).shape == (3, 64)
    assert ops.swiglu(x, x).dtype is torch.bfloat16
    table = torch.empty(9, 32, device="meta")
    assert ops.rope(x.view(3, 2, 32), torch.empty(3, device="meta"), table).is_contiguous()


def test_what_does_not_fit_is_refused():
    x = random(3, 64)
    with pytest.raises(ShapeMismatch, match=r"x \(3, 64\), weight \(20, 63\)"):
        ops.linear(x, random(20, 63))
    with pytest.raises(ShapeMismatch, match=r"bias \(19,\)"):
        ops.linear(x, random(20, 64), random(19))
    with pytest.raises(ShapeMismatch, match=r"weight \(63,\)"):
        ops.rms_norm(x, random(63), 1e-5)
    with pytest.raises(ShapeMismatch, match=r"bfloat16 \(3, 64\)"):
        ops.swiglu(x, x.bfloat16())
    with pytest.raises(ShapeMismatch, match=r"positions \(2,\)"):
        ops.rope(x.view(3, 2, 32), torch.zeros(2), ops.rope_table(4, 32, 1e4))
    with pytest.raises(UnknownKernels, match=r"'cuda', expected one of portable, triton, plain"):
        Operators("cuda")
