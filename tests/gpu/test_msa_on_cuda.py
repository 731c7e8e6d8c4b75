"""msa's portable operators on CUDA tensors: bits that do not depend on the number of tiles."""

from __future__ import annotations

import pytest
import torch

from graphcheck import fuzz
from graphcheck.finding import Severity, Verdict
from graphcheck.registry import registered, resolve
from msa.tile import TILES_PER_CALL, dots, weighted


@pytest.mark.parametrize(("dim", "page_size"), [(128, 128), (32, 16), (16, 8)])
def test_products_do_not_depend_on_the_number_of_tiles(dim: int, page_size: int) -> None:
    generator = torch.Generator(device="cuda").manual_seed(1)
    count = 5 * TILES_PER_CALL

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", generator=generator)

    rows, keys = normal(count, 16, dim), normal(count, page_size, dim)
    weights, values = normal(count, 16, page_size), normal(count, page_size, dim)
    scores, sums = dots(rows, keys), weighted(weights, values)
    for part in (1, 2, 7, TILES_PER_CALL - 1, TILES_PER_CALL, TILES_PER_CALL + 1, 3 * TILES_PER_CALL):
        assert torch.equal(dots(rows[3 : 3 + part], keys[3 : 3 + part]), scores[3 : 3 + part])
        assert torch.equal(weighted(weights[3 : 3 + part], values[3 : 3 + part]), sums[3 : 3 + part])


@pytest.mark.parametrize("name", [name for name in registered() if name.startswith("msa.") and name != "msa.decode.m3"])
def test_components_hold(name: str) -> None:
    target = fuzz(resolve(name), backend="cuda", examples=10, seed=2).targets[0]
    assert [finding for finding in target.findings if finding.severity is not Severity.NOTE] == []
    assert target.verdict is Verdict.PASS
