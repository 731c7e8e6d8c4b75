"""The component contract: members cannot be hidden, decorators keep the function, lazy state is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphcheck import Buffers, CaseRefused, Component, capture_safe, refuse_while_capturing
from graphcheck.backend import resolve
from graphcheck.contract import Contract, contract_of
from graphcheck.errors import CaptureRefused, ContractError
from graphcheck.finding import RungStatus, Verdict
from graphcheck.fuzzer import fuzz
from graphcheck.zoo.rows import MaskedSum


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("key", 3),
        ("run", "fast"),
        ("mutates", ["cache"]),
        ("scratch", "work"),
        ("warmup", -1),
        ("warmup", True),
        ("allocation", "some"),
        ("tolerance", 1e-3),
        ("inert", {"x": ""}),
    ],
)
def test_hiding_a_member_is_a_type_error_when_defined_and_when_set(member: str, value: Any) -> None:
    with pytest.raises(TypeError, match=member):
        type("Odd", (Component,), {member: value})
    component = MaskedSum()
    with pytest.raises(TypeError, match=member):
        setattr(component, member, value)


def test_buffers_hold_tensors_only_and_no_taken_names() -> None:
    with pytest.raises(ContractError, match="must be a tensor"):
        Buffers(x=3)  # type: ignore[arg-type]
    with pytest.raises(ContractError, match="taken"):
        Buffers(items=torch.zeros(1))


def test_capture_safe_gives_the_same_function_with_a_contract() -> None:
    def step(kv_lens: object, scale: float, out: object) -> None:
        """Nothing."""

    assert capture_safe(dynamic=("kv_lens",), static=("scale",), out=("out",))(step) is step
    assert contract_of(step) == Contract(("kv_lens",), ("scale",), ("out",))
    with pytest.raises(TypeError, match="both"):
        capture_safe(dynamic=("x",), static=("x",))
    with pytest.raises(TypeError, match="tuple"):
        capture_safe(dynamic="x")  # type: ignore[arg-type]


def test_lazy_state_is_refused_inside_a_capture_only() -> None:
    backend = resolve("emulator")
    refuse_while_capturing("tables")

    def region() -> dict[str, torch.Tensor]:
        refuse_while_capturing("tables")
        return {}

    with backend.active():
        region()
        with pytest.raises(CaptureRefused, match="tables would be built") as caught:
            backend.record(region, backend.pool())
    assert caught.value.code == "GC405"
    assert caught.value.where is not None
    assert caught.value.where.source.startswith("refuse_while_capturing")


class Choosy(MaskedSum):
    """Refuses rows longer than a bound."""

    longest = 20

    def stage(self, buffers: Buffers, case: Any) -> None:
        if int(case.lens.max()) > self.longest:
            raise CaseRefused(f"at most {self.longest} tokens")
        super().stage(buffers, case)


class TooChoosy(Choosy):
    longest = 2


class AllChoosy(Choosy):
    longest = -1


def test_refused_cases_are_counted_and_neither_pass_nor_fail() -> None:
    target = fuzz(Choosy, backend="emulator", examples=30, seed=1).targets[0]
    assert target.verdict is Verdict.PASS
    assert 0 < target.counts.refused < target.counts.cases / 2


def test_refusing_most_cases_is_vacuous() -> None:
    target = fuzz(TooChoosy, backend="emulator", examples=30, seed=1).targets[0]
    assert [finding.code for finding in target.errors] == ["GC963"]
    assert target.rungs["vacuity"] is RungStatus.FAILED


def test_refusing_everything_is_never_green() -> None:
    report = fuzz(AllChoosy, backend="emulator", examples=5, seed=1)
    assert report.exit_code == 1
    assert report.targets[0].rungs["eager"] is RungStatus.NOT_RUN
    assert "nothing was replayed" in report.targets[0].findings[0].message


class Deaf(MaskedSum):
    """Draws a field that nothing reads."""

    def cases(self) -> Any:
        from hypothesis import strategies as st

        from graphcheck import case, contents, lengths

        return case(lens=lengths(4, 0, 24, page=8), x=contents(("normal",)), mood=st.integers(0, 9))


class KnowinglyDeaf(Deaf):
    inert = {"mood": "it is only printed"}


def test_a_field_without_influence_is_a_warning_unless_it_is_declared_inert() -> None:
    deaf = fuzz(Deaf, backend="emulator", examples=10, seed=1).targets[0]
    assert deaf.verdict is Verdict.PASS
    assert [finding.code for finding in deaf.findings if finding.severity.value == "warning"] == ["GC963"]
    assert "'mood'" in deaf.findings[0].message
    knowing = fuzz(KnowinglyDeaf, backend="emulator", examples=10, seed=1).targets[0]
    assert [finding for finding in knowing.findings if finding.severity.value == "warning"] == []


class Siblings(MaskedSum):
    """State and scratch that lie beside each other in one allocation."""

    mutates = ("total",)
    scratch = ("spare",)

    def allocate(self, device: torch.device) -> Buffers:
        whole = torch.zeros(8, device=device)
        return Buffers(**dict(super().allocate(device).items()), total=whole[:4], spare=whole[4:])

    def run(self, buffers: Buffers) -> Any:
        buffers.total.add_(1)
        buffers.spare.fill_(2)
        return super().run(buffers)

    def written(self, buffers: Buffers, case: Any) -> Any:
        return {"total": slice(0, 4)}


def test_scratch_may_lie_beside_state_in_one_allocation() -> None:
    target = fuzz(Siblings, backend="emulator", examples=5, seed=1).targets[0]
    assert target.errors == []
    assert target.verdict is Verdict.PASS
