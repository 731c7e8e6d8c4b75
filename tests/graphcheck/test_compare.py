"""Bitwise comparison: integer views, masks, ULP distance, one host read."""

from __future__ import annotations

import pytest
import torch

from graphcheck.cases import Case, Lengths
from graphcheck.compare import Comparator, Mismatch, describe, differs, region_mask, ulp_distance
from graphcheck.errors import ContractError


def test_signed_zeros_and_nan_payloads_count_as_differences() -> None:
    first = torch.tensor([0.0, float("nan"), 1.0])
    second = torch.tensor([-0.0, float("nan"), 1.0])
    assert differs(first, second).tolist() == [True, False, False]
    payload = torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert differs(first[1:2], payload).tolist() == [True]


def test_only_the_region_counts() -> None:
    first, second = torch.zeros(2, 3), torch.ones(2, 3)
    mask = region_mask(first, (slice(None), 0))
    assert mask is not None
    assert differs(first, second, mask).sum() == 2
    assert region_mask(first, torch.tensor([[True], [False]])).tolist() == [[True] * 3, [False] * 3]  # type: ignore[union-attr]


@pytest.mark.parametrize("region", [torch.ones(5, dtype=torch.bool), (9,)])
def test_a_region_that_does_not_fit_is_a_contract_error(region: object) -> None:
    with pytest.raises(ContractError, match="written"):
        region_mask(torch.zeros(2, 3), region)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_neighbouring_floats_are_one_ulp_apart_also_across_zero(dtype: torch.dtype) -> None:
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[torch.empty(0, dtype=dtype).element_size()]
    one = torch.tensor(1.0, dtype=dtype)
    following = (one.view(integer) + 1).view(dtype)
    assert ulp_distance(one, following) == 1
    smallest = torch.tensor(1, dtype=integer).view(dtype)
    assert ulp_distance(-smallest, smallest) == 2
    assert ulp_distance(torch.tensor(0.0, dtype=dtype), torch.tensor(-0.0, dtype=dtype)) == 0


def test_a_mismatch_names_coordinate_values_distance_and_the_row_s_length() -> None:
    expected, got = torch.zeros(2, 3), torch.zeros(2, 3)
    got[1, 2] = 1.5
    mismatch = describe("out", expected, got, differs(expected, got))
    assert (mismatch.index, mismatch.count, mismatch.total) == ((1, 2), 1, 6)
    assert mismatch.got == "1.5 (0x3fc00000)"
    case = Case(lens=Lengths((4, 9), 0, 10))
    assert mismatch.place(case) == "out[1, 2] (lens[1] = 9)"


def test_the_lazy_comparator_tells_only_at_the_end_and_the_immediate_one_describes() -> None:
    found: list[Mismatch] = []
    lazy = Comparator(immediate=False)
    lazy.check("a", torch.zeros(3), torch.zeros(3), None, found.append)
    assert not lazy.pending()
    lazy.check("a", torch.zeros(3), torch.ones(3), None, found.append)
    assert lazy.pending() and found == []
    eager = Comparator(immediate=True)
    eager.check("a", torch.zeros(3), torch.ones(3), None, found.append)
    assert [mismatch.name for mismatch in found] == ["a"]
    assert eager.compared_bytes == 12
