"""Where causes must not be named: neighbours of the planted defects that are something else."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from hypothesis import strategies as st

from graphcheck.backend import resolve
from graphcheck.cases import Case, Contents, Lengths
from graphcheck.checker import check
from graphcheck.component import Buffers
from graphcheck.oracle.vacuity import Influence
from graphcheck.plan import Plan
from graphcheck.zoo.random import DrawsFromDefault
from graphcheck.zoo.rows import WIDTH, WithoutReference


def at(*lens: int, **fields: object) -> Case:
    return Case(lens=Lengths(lens, 0, WIDTH), x=Contents("normal", 3), **fields)


class OtherEager(WithoutReference):
    """An eager engine with other operations, whose answer is off by ``error``."""

    def __init__(self, error: float) -> None:
        self.error = error

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        buffers.out.copy_(self.masked(buffers).cumsum(1)[:, -1] + self.error)
        return {"out": buffers.out}


@pytest.mark.parametrize(
    ("error", "code"),
    [(0.0, "GC951"), (1e-5, "GC951"), (1.0, "GC312"), (float("inf"), "GC312"), (float("nan"), "GC312")],
)
def test_only_rounding_is_another_algorithm(error: float, code: str) -> None:
    plan = Plan((at(5, 5, 5, 5),), (at(24, 23, 22, 21),))
    (target,) = check(OtherEager(error), plan, backend="emulator").targets
    assert target.findings[0].code == code


class DrawsWithUnusedField(DrawsFromDefault):
    def cases(self) -> st.SearchStrategy[Case]:
        return st.just(at(1, 2, 3, 4, unused=1))


def test_random_numbers_are_no_influence_of_a_field() -> None:
    cases = [at(1, 2, 3, 4, unused=number) for number in (1, 2, 3)]
    found = Influence(DrawsWithUnusedField(), resolve("emulator")).findings(cases)
    assert ["unused" in finding.message for finding in found] == [True]


class CrossesPage(WithoutReference):
    """Wrong from the ninth entry on, where pages of eight begin anew; the buffers hold more."""

    def allocate(self, device: torch.device) -> Buffers:
        return Buffers(**dict(super().allocate(device).items()), page=torch.zeros(8, device=device))

    def eager(self, buffers: Buffers, case: Case) -> Mapping[str, torch.Tensor]:
        outputs = self.run(buffers)
        buffers.out.add_(torch.where(buffers.lens > 8, 100.0, 0.0) + buffers.page[0])
        return outputs


def test_a_length_that_crosses_an_extent_is_within_capacity_if_the_region_sees_it() -> None:
    plan = Plan((at(1, 1, 1, 1),), (at(9, 1, 1, 1),))
    (target,) = check(CrossesPage(), plan, backend="emulator").targets
    assert target.findings[0].code == "GC312"
