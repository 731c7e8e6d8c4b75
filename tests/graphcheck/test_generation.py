"""What a seed gives depends on nothing that the process did before."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

from graphcheck.generation import generate

NUMBERS = st.lists(st.integers(3, 5000), min_size=3, max_size=6)


def drawn(seeded: int) -> list[list[int]]:
    values: list[list[int]] = []
    generate(NUMBERS, values.append, examples=100, seeded=seeded)
    return values


def test_a_seed_gives_the_same_after_tests_that_drew_from_the_same_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's test fills Hypothesis' cache with constants of imported modules. Expected: the seed gives what it gave."""
    before = drawn(1)
    theirs = type(providers.GLOBAL_CONSTANTS)()
    theirs.integers.update([41, 1907, 4243])
    seen: set[int] = set()
    monkeypatch.setattr(providers, "_get_local_constants", lambda: theirs)
    monkeypatch.setattr(providers, "CONSTANTS_CACHE", type(providers.CONSTANTS_CACHE)(64))

    @settings(
        max_examples=300,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(NUMBERS)
    def test_of_a_user(numbers: list[int]) -> None:
        seen.update(numbers)

    test_of_a_user()
    assert {41, 1907, 4243} <= seen
    assert drawn(1) == before


def test_another_seed_gives_other_values() -> None:
    assert drawn(1) != drawn(2)


def test_a_profile_of_the_user_changes_nothing() -> None:
    before = drawn(3)
    settings.register_profile("of-a-user", derandomize=True, max_examples=5)
    current = settings.get_current_profile_name()
    settings.load_profile("of-a-user")
    try:
        assert drawn(3) == before
    finally:
        settings.load_profile(current)


def test_what_the_user_of_a_value_raises_ends_the_search() -> None:
    class Enough(BaseException):
        pass

    values: list[list[int]] = []

    def use(numbers: list[int]) -> None:
        values.append(numbers)
        if len(values) == 4:
            raise Enough

    with pytest.raises(Enough):
        generate(NUMBERS, use, examples=50, seeded=1)
    assert len(values) == 4
