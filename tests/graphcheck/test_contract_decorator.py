"""`@capture_safe` in full: ranges, allowances, and names that must be arguments of the function."""

from __future__ import annotations

from typing import Any

import pytest

from graphcheck import Range, capture_safe
from graphcheck.contract import contract_of


def step(kv_lens: object, scale: float, out: object, work: object) -> None:
    """Takes four arguments."""


def test_every_member_takes_names_or_names_with_ranges() -> None:
    """Expected: the same function object, names in the order given, ranges by name."""
    decorate = capture_safe(
        dynamic={"kv_lens": (0, 4096)},
        static=["scale"],
        out={"out": None},
        workspace={"work": Range(0, 1)},
        allow={"GC505": "one scalar"},
    )
    assert decorate(step) is step
    contract = contract_of(step)
    assert contract is not None
    assert (contract.dynamic, contract.static, contract.out, contract.workspace) == (
        ("kv_lens",),
        ("scale",),
        ("out",),
        ("work",),
    )
    assert contract.ranges == {"kv_lens": Range(0, 4096), "work": Range(0, 1)}
    assert contract.allow == {"GC505": "one scalar"}
    assert contract.role("work") == "workspace" and contract.role("nothing") == ""
    assert 4096 in contract.ranges["kv_lens"] and 4097 not in contract.ranges["kv_lens"]
    assert hash(contract) == hash(contract)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"dynamic": "kv_lens"}, TypeError, "tuple of argument names"),
        ({"dynamic": (3,)}, TypeError, "tuple of argument names"),
        ({"dynamic": ("kv_lens", "kv_lens")}, TypeError, "twice"),
        ({"dynamic": ("kv_lens",), "out": ("kv_lens",)}, TypeError, "both dynamic and out"),
        ({"dynamic": {"kv_lens": 4096}}, TypeError, "expected .low, high."),
        ({"dynamic": {"kv_lens": (5, 1)}}, ValueError, "empty"),
        ({"dynamic": {"kv_lens": ("a", "b")}}, ValueError, "two numbers"),
        ({"dynamic": ("kv_len",)}, TypeError, "takes no argument 'kv_len' .GC993.; it takes kv_lens"),
        ({"allow": {"GC505": " "}}, ValueError, "no reason .GC992."),
        ({"allow": {"505": "because"}}, ValueError, "no code"),
        ({"allow": ("GC505",)}, TypeError, "mapping of codes to reasons"),
    ],
)
def test_bad_use_is_refused_when_the_function_is_decorated(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    """Expected: the error names the member and says what to write."""
    with pytest.raises(error, match=words):
        capture_safe(**arguments)(step)


def test_only_functions_can_be_decorated() -> None:
    with pytest.raises(TypeError, match="decorates functions"):
        capture_safe()("step")  # type: ignore[type-var]


def test_a_function_that_takes_any_keyword_may_have_any_name() -> None:
    """Expected: nothing is raised, because the signature cannot say otherwise."""

    def wide(**arguments: object) -> None:
        """Nothing."""

    assert contract_of(capture_safe(dynamic=("anything",))(wide)) is not None
