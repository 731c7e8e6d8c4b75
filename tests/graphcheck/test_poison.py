"""Poison and clearing work on bits, whatever the dtype and the strides."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from graphcheck import Buffers, Case, Component, case, contents, fuzz
from graphcheck.finding import Verdict
from graphcheck.poison import bits, poison, poisoned, zero_where

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_clearing_reaches_the_masked_elements_only(dtype: torch.dtype) -> None:
    """A strided view of poison. Expected: zero bits where the mask is, poison everywhere else."""
    whole = torch.empty(4, 6, dtype=torch.float32).to(dtype)
    poison(whole)
    before = bits(whole).clone()
    view, mask = whole[:, ::2], torch.tensor([[True, False, True]]).expand(4, 3)
    zero_where(view, mask)
    assert not bits(whole)[:, [0, 4]].any()
    assert torch.equal(bits(whole)[:, [1, 2, 3, 5]], before[:, [1, 2, 3, 5]])


def test_poison_is_told_from_contents() -> None:
    tensor = torch.zeros(3)
    poison(tensor[1:])
    assert poisoned(tensor).tolist() == [False, True, True]


class Quantises(Component):
    """Rows stored as fp8: an input, a state and an output of a dtype for which torch lacks many operators."""

    mutates = ("stored",)

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(
            x=torch.empty(2, 8, device=device),
            unused=torch.zeros(8, device=device).to(torch.float8_e4m3fn),
            stored=torch.zeros(2, 8, device=device).to(torch.float8_e4m3fn),
            out=torch.empty(2, 8, device=device),
        )

    def cases(self):
        return case(x=contents(("normal",)))

    def stage(self, buffers: Buffers, case: Case) -> None:
        case.x.fill(buffers.x)

    def run(self, buffers: Buffers) -> Mapping[str, torch.Tensor]:
        buffers.stored.copy_(buffers.x)
        buffers.out.copy_(buffers.stored.to(torch.float32))
        return {"out": buffers.out}

    def written(self, buffers: Buffers, case: Case):
        return {"stored": torch.ones(2, 1, dtype=torch.bool)}


def test_components_may_hold_fp8() -> None:
    (target,) = fuzz(Quantises, backend="emulator", examples=4, seed=1).targets
    assert target.verdict is Verdict.PASS, [str(finding) for finding in target.findings]
