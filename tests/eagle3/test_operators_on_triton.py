"""The Triton operators: the bits of a row in any company, and the values of plain torch.

On a machine with a GPU they run there; elsewhere `test_operators_in_a_child` runs this module in Triton's interpreter.
"""

from __future__ import annotations

import os

import pytest
import torch

from eagle3.errors import ShapeMismatch
from eagle3.ops import Operators, plain, rope_table

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("no GPU; test_operators_in_a_child runs these in Triton's interpreter", allow_module_level=True)
kernels = pytest.importorskip("eagle3.ops.triton", reason="the kernels need triton, which is not installed")
from eagle3.ops.triton.linear import shape_of  # noqa: E402 - after the check for triton

torch.set_num_threads(1)
DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPES = [torch.float32, torch.bfloat16]
# The last places are in tiles of 32 rows, the first in tiles of 16.
PLACES = ((2, 1), (16, 13), (17, 16), (33, 32))
WEIGHTS = ((96, 256), (70, 1024), (1, 264), (37, 100))


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device=DEVICE, dtype=dtype)


def equal_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    kind = {2: torch.int16, 4: torch.int32}[first.element_size()]
    return torch.equal(first.contiguous().view(kind), second.contiguous().view(kind))


def assert_invariant(function, row: torch.Tensor) -> None:
    alone = function(row.unsqueeze(0))[0]
    assert alone.isfinite().all()
    for number, (rows, place) in enumerate(PLACES):
        full = random(rows, *row.shape, seed=number, dtype=row.dtype)
        if number % 3 == 2:
            full.fill_(float("nan"))
        full[place] = row
        assert equal_bits(function(full)[place], alone), (rows, place)


@pytest.mark.parametrize(("columns", "depth", "dtype"), [(*shape, DTYPES[n % 2]) for n, shape in enumerate(WEIGHTS)])
def test_linear(columns, depth, dtype):
    weight, bias = random(columns, depth, seed=1, dtype=dtype), random(columns, seed=2, dtype=dtype)
    assert_invariant(lambda x: kernels.linear(x, weight, bias), random(depth, seed=3, dtype=dtype))
    x = random(19, depth, dtype=dtype)
    exact = plain.linear(x.double(), weight.double(), bias.double())
    wide = kernels.linear(x, weight, bias, torch.float32)
    assert wide.dtype is torch.float32
    torch.testing.assert_close(wide.double(), exact, rtol=0, atol=2e-4)
    if dtype is torch.float32 or not INTERPRETED:  # the interpreter cuts off where the device rounds
        assert equal_bits(kernels.linear(x, weight, bias), wide.to(dtype))
    assert kernels.linear(x[:0], weight).shape == (0, columns)


def test_the_depth_is_split_by_the_weight_alone():
    shapes = [shape_of(columns, depth, torch.bfloat16) for columns, depth in (*WEIGHTS, (6144, 6144), (128, 6144))]
    # Tile, splits, tiles of each; no split is empty, none is left over.
    assert shapes == [(128, 1, 2), (128, 4, 2), (128, 1, 3), (128, 1, 1), (128, 4, 12), (128, 16, 3)]
    for columns in (1, 64, 300, 6144, 200064):
        for depth in (1, 64, 700, 1111, 6144, 12288, 18432):
            for dtype in DTYPES:
                block, splits, each = shape_of(columns, depth, dtype)
                tiles = -(-depth // block)
                assert (splits - 1) * each < tiles <= splits * each


@pytest.mark.parametrize(("width", "dtype"), [(256, torch.bfloat16), (33, torch.float32), (6144, torch.bfloat16)])
def test_rms_norm(width, dtype):
    weight = random(width, seed=1, dtype=dtype)
    assert_invariant(lambda x: kernels.rms_norm(x, weight, 1e-5), random(width, seed=3, dtype=dtype))
    x = random(3, width)
    torch.testing.assert_close(
        kernels.rms_norm(x, weight, 1e-5).double(), plain.rms_norm(x.double(), weight, 1e-5), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(("width", "dtype"), [(704, torch.bfloat16), (33, torch.float32), (1100, torch.bfloat16)])
def test_swiglu(width, dtype):
    row = random(2 * width, seed=3, dtype=dtype) * 5
    assert_invariant(lambda x: kernels.swiglu(x[:, :width], x[:, width:]), row)
    gate, up = random(3, 2 * width).split(width, 1)
    torch.testing.assert_close(
        kernels.swiglu(gate, up).double(), plain.swiglu(gate.double(), up.double()), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(("heads", "dim", "rotated"), [(2, 32, 32), (3, 10, 6), (1, 16, 8)])
def test_rope(heads, dim, rotated):
    table = rope_table(50, rotated, 10000.0, device=DEVICE)
    row = random(heads, dim, seed=3, dtype=torch.bfloat16)
    assert_invariant(lambda x: kernels.rope(x, torch.full((x.shape[0],), 31, device=DEVICE), table), row)
    # A part of wider rows, as the keys are of a stacked projection.
    x = random(3, heads + 2, dim)[:, 1 : heads + 1]
    positions = torch.tensor([-3, 49, 70], dtype=torch.int32, device=DEVICE)
    got = kernels.rope(x, positions, table)
    assert got.is_contiguous()
    torch.testing.assert_close(got.double(), plain.rope(x.double(), positions, table), rtol=0, atol=1e-6)
    assert equal_bits(got[..., rotated:], x[..., rotated:])


def test_the_choice_of_operators():
    assert Operators("triton").linear is kernels.linear
    with pytest.raises(ShapeMismatch, match=r"weight \(contiguous: False"):
        kernels.linear(random(2, 64), random(64, 20).t())
    with pytest.raises(ShapeMismatch, match=r"weight \(20, 63\)"):
        kernels.linear(random(2, 64), random(20, 63))
