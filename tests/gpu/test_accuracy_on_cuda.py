"""Attention of the Triton kernels at MiniMax-M3's sizes, in bf16, against float64."""

from __future__ import annotations

import pytest
import torch

from graphcheck import Case, Contents, PageTable
from graphcheck.cases import Integer, Lengths
from msa.bench import m3_variants
from msa.component.attention import Attention
from msa.component.passes import Dense
from msa.component.steps import Decode

LENGTHS = (2500, 1301)
LONG = 1024


def errors(component: Attention, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Distance of each output element from float64, one bf16 ULP there, and what each row attends to, tokens; host."""
    name, variant = next(iter(component.VARIANTS.items()))
    geometry, bucket = variant.geometry, variant.bucket
    case = Case(
        variant=name,
        size=Integer(bucket, 1, bucket),
        lens=Lengths(LENGTHS, 0, geometry.capacity),
        table=PageTable("permuted", 5, bucket, geometry.max_pages, geometry.num_pages),
        x=Contents("normal", 3),
        kv=Contents("normal", 4),
    ).through_json()
    buffers = component.allocate(device)
    component.stage(buffers, case)
    before = {key: tensor.cpu() for key, tensor in buffers.items()}
    outputs = {key: tensor.cpu() for key, tensor in component.run(buffers).items()}
    right = component.reference(before, case, outputs)["out"].double()
    exponent = torch.floor(torch.log2(right.abs().clamp(min=2.0**-126)))
    extents = torch.tensor(component.scene(case).extents())
    return (outputs["out"].double() - right).abs(), 2.0 ** (exponent - 7), extents


@pytest.mark.parametrize("kind", [Decode, Dense], ids=["sparse", "dense"])
@pytest.mark.parametrize("ways", [1, 4, 8])
def test_every_element_is_within_an_ulp_and_a_thousandth(kind: type[Attention], ways: int) -> None:
    """Expected: every element within one ULP plus 1e-3; of long rows the largest error below 5e-3, the mean below 2.5e-4."""
    distance, ulp, extents = errors(kind(m3_variants(ways)), torch.device("cuda"))
    assert (distance - ulp).max() <= 1e-3
    long = distance[extents >= LONG]
    assert long.shape[0] == extents.shape[0]
    assert long.max() < 5e-3 and long.mean() < 2.5e-4
