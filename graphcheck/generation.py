"""How Hypothesis is run: what it draws follows from the seed and the strategies, whatever the process did before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.internal.conjecture import providers
from hypothesis.strategies import SearchStrategy

Drawn = TypeVar("Drawn")


def generate(strategy: SearchStrategy[Drawn], use: Callable[[Drawn], None], *, examples: int, seeded: int) -> None:
    """``use`` was called with what ``strategy`` gave, ``examples`` times or until it raised, without shrinking.

    Args:
        strategy: what to draw.
        use: takes one drawn value; what it raises ends the search. An Exception makes Hypothesis call it once more with
            the same value.
        examples: most values, at least 1.
        seeded: the same seed, strategy and version of Hypothesis give the same values.

    Raises:
        What ``use`` raises.
    """

    def attempt(value: Drawn) -> None:
        use(value)

    # A profile of the user's, or the one Hypothesis takes where CI is set, must change nothing either.
    search = settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=False,
        backend="hypothesis",
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )(given(strategy)(attempt))
    with _without_constants_of_the_process():
        seed(seeded)(search)()


@contextmanager
def _without_constants_of_the_process() -> Iterator[None]:
    """Hypothesis draws constants that it reads in the sources of imported modules, and caches those that suit a range.

    Both would make what a seed gives depend on the imports and on the tests that ran before.
    """
    harvest: Any = getattr(providers, "_get_local_constants", None)
    cache: Any = getattr(providers, "CONSTANTS_CACHE", None)
    if harvest is None or cache is None:
        yield
        return
    nothing: Any = type(providers.GLOBAL_CONSTANTS)()
    providers._get_local_constants = lambda: nothing
    providers.CONSTANTS_CACHE = type(cache)(cache.max_size)
    try:
        yield
    finally:
        providers._get_local_constants = harvest
        providers.CONSTANTS_CACHE = cache
