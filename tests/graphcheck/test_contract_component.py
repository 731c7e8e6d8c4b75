"""`component_of`: a decorated function is fuzzed by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphcheck import Buffers, capture_safe, component_of, lengths
from graphcheck.errors import ContractError
from graphcheck.finding import Verdict
from graphcheck.fuzzer import fuzz

ROWS, WIDTH = 4, 24


@capture_safe(dynamic={"x": None, "kv_lens": (0, WIDTH)}, static=("scale",), out=("out",), workspace=("work",))
def masked_sum(
    x: torch.Tensor, kv_lens: torch.Tensor, out: torch.Tensor, work: torch.Tensor, scale: float = 0.5
) -> None:
    """Scaled sums over the valid entries of each row."""
    columns = torch.arange(WIDTH, device=x.device)
    work.copy_(torch.where(columns < kv_lens.unsqueeze(1), x, torch.zeros_like(x)))
    out.copy_(work.sum(1) * scale)


@capture_safe(dynamic={"x": None, "longest": (1, WIDTH)}, out=("out",))
def sum_to_longest(x: torch.Tensor, longest: int, out: torch.Tensor) -> None:
    """The width is a host length."""
    out.copy_(x[:, :longest].cumsum(1)[:, -1])


@capture_safe(dynamic={"x": (-1.0, 1.0)}, out=("total",))
def accumulate(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Adds each step's rows to a running total and returns them."""
    total.add_(x.sum(1))
    return x * 2


def buffers(device: torch.device) -> Buffers:
    return Buffers(
        x=torch.empty(ROWS, WIDTH, device=device),
        kv_lens=torch.empty(ROWS, dtype=torch.int32, device=device),
        out=torch.empty(ROWS, device=device),
        work=torch.empty(ROWS, WIDTH, device=device),
    )


def plain(device: torch.device) -> Buffers:
    return Buffers(x=torch.empty(ROWS, WIDTH, device=device), out=torch.empty(ROWS, device=device))


def test_a_correct_function_passes() -> None:
    """Expected: no finding above a note; lengths and contents come from the contract's ranges."""
    component = component_of(masked_sum, buffers=buffers, bind={"scale": 2.0})
    assert component.scratch == ("work",)
    (target,) = fuzz(component, backend="emulator", examples=15, seed=1).targets
    assert [finding.code for finding in target.findings if finding.severity.value != "note"] == []
    assert target.verdict is Verdict.PASS


def test_a_strategy_replaces_the_default_of_a_dynamic_argument() -> None:
    component = component_of(masked_sum, buffers=buffers, kv_lens=lengths(rows=ROWS, low=3, high=5))
    (target,) = fuzz(component, backend="emulator", examples=10, seed=1).targets
    assert target.verdict is Verdict.PASS


def test_a_baked_host_length_is_found() -> None:
    """Expected: the frozen extent is the first finding, because the length is a launch parameter."""
    (target,) = fuzz(component_of(sum_to_longest, buffers=plain), backend="emulator", examples=25, seed=1).targets
    assert target.verdict is Verdict.FAIL
    assert target.errors[0].code.startswith("GC3")


def test_state_among_the_out_arguments_lives_on() -> None:
    """Expected: a running total passes when it is declared as state, and what is returned is an output."""

    def made(device: torch.device) -> Buffers:
        return Buffers(x=torch.empty(ROWS, WIDTH, device=device), total=torch.zeros(ROWS, device=device))

    component = component_of(accumulate, buffers=made, mutates=("total",))
    (target,) = fuzz(component, backend="emulator", examples=10, seed=1).targets
    assert [finding.code for finding in target.errors] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"buffers": plain}, "'work' has no buffer|'out' has no buffer|'kv_lens'"),
        ({"buffers": buffers, "bind": {"x": 1}}, "not a static argument"),
        ({"buffers": buffers, "out": lengths(rows=2)}, "not a dynamic argument"),
        ({"buffers": buffers, "mutates": ("x",)}, "no out argument"),
        ({"buffers": lambda device: {}}, "expected Buffers"),
    ],
)
def test_arguments_that_do_not_fit_the_contract_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ContractError, match=words):
        component_of(masked_sum, **arguments)


def test_a_function_without_a_contract_is_refused() -> None:
    with pytest.raises(ContractError, match="decorate it"):
        component_of(torch.add, buffers=plain)
