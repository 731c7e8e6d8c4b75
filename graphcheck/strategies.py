"""Strategies: how cases and plans are drawn. Built on Hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from graphcheck.cases import CONTENT_KINDS, TABLE_KINDS, Case, Contents, Integer, Lengths, PageTable
from graphcheck.errors import UsageError
from graphcheck.generation import generate
from graphcheck.plan import Plan

# Shares of the plans that have each option; evictions among those in which some graph has had its last replay.
_NEIGHBOURS = 0.15
_EVICTIONS = 0.5


def case(**fields: SearchStrategy[Any]) -> SearchStrategy[Case]:
    """Cases whose named fields are drawn from the given strategies (ours, or any Hypothesis strategy of JSON values)."""
    for name, strategy in fields.items():
        if not isinstance(strategy, SearchStrategy):
            raise UsageError(
                f"case({name}={strategy!r}): expected a strategy; use hypothesis.strategies.just for a constant"
            )
    return st.builds(Case, **fields)


def boundaries(low: int, high: int, page: int = 0, qo_len: int = 1) -> list[int]:
    """The lengths in ``low..high`` where ragged kernels break, in ascending order.

    0, 1, below and at ``qo_len``, around multiples of ``page``, around ``high``.
    """
    wanted = {0, 1, 2, qo_len - 1, qo_len, qo_len + 1, low, low + 1, high - 1, high}
    if page:
        pages = high // page
        for multiple in {1, 2, 3, pages // 2, pages - 1, pages}:
            wanted.update(multiple * page + offset for offset in (-1, 0, 1, qo_len - 1))
    return sorted(length for length in wanted if low <= length <= high)


def lengths(
    rows: int, low: int = 0, high: int = 4096, page: int = 0, qo_len: int = 1, alive: int = 0
) -> SearchStrategy[Lengths]:
    """Ragged lengths [rows], tokens, biased to the boundaries.

    Args:
        rows: how many.
        low, high: the range, both ends included.
        page: page size; lengths around its multiples are drawn often.
        qo_len: query tokens per request; lengths below and around it are drawn often.
        alive: that many leading rows are never below ``max(low, 1)``.
    """
    if not 0 <= low <= high or rows < 1:
        raise UsageError(f"lengths(rows={rows}, low={low}, high={high}): expected rows >= 1 and 0 <= low <= high")
    edge = st.sampled_from(boundaries(low, high, page, qo_len))
    short = st.integers(low, min(high, low + 2 * max(page, 8)))
    row = st.one_of(edge, edge, short, st.integers(low, high))
    ragged = st.lists(row, min_size=rows, max_size=rows)
    uniform = row.map(lambda value: [value] * rows)

    def build(values: list[int]) -> Lengths:
        floor = min(high, max(low, 1))
        raised = [max(value, floor) if index < alive else value for index, value in enumerate(values)]
        return Lengths(tuple(raised), low, high)

    return st.one_of(ragged, ragged, ragged, uniform).map(build)


def integers(low: int, high: int) -> SearchStrategy[Integer]:
    """Host integers in ``low..high``, both ends included; the component sees an int."""
    if low > high:
        raise UsageError(f"integers({low}, {high}): the range is empty")
    return st.one_of(st.sampled_from((low, high)), st.integers(low, high)).map(lambda value: Integer(value, low, high))


def batch(bucket: int, low: int = 1) -> SearchStrategy[Integer]:
    """Batch sizes inside a bucket: 1, one below full, full, and between."""
    edges = sorted({low, min(bucket, low + 1), max(low, bucket - 1), bucket})
    return st.one_of(st.sampled_from(edges), st.integers(low, bucket)).map(lambda value: Integer(value, low, bucket))


def contents(kinds: tuple[str, ...] = ("normal", "ramp", "extremes")) -> SearchStrategy[Contents]:
    """Tensor contents by class and seed. Known classes: normal, ramp, ties, extremes, zeros."""
    unknown = [kind for kind in kinds if kind not in CONTENT_KINDS]
    if unknown or not kinds:
        raise UsageError(f"contents{kinds!r}: known classes are {', '.join(CONTENT_KINDS)}")
    return st.builds(Contents, st.sampled_from(kinds), st.integers(0, 2**16 - 1))


def page_tables(rows: int, width: int, pages: int, kinds: tuple[str, ...] = TABLE_KINDS) -> SearchStrategy[PageTable]:
    """Page tables [rows, width] by class and seed: identity, reversed, permuted, shared prefix."""
    unknown = [kind for kind in kinds if kind not in TABLE_KINDS]
    if unknown or not kinds:
        raise UsageError(f"page_tables(kinds={kinds!r}): known classes are {', '.join(TABLE_KINDS)}")
    if pages < width:
        raise UsageError(f"page_tables: {pages} pages cannot fill rows of {width}")
    return st.builds(
        PageTable, st.sampled_from(kinds), st.integers(0, 2**16 - 1), st.just(rows), st.just(width), st.just(pages)
    )


def plans(
    cases: SearchStrategy[Case],
    key: Callable[[Case], Hashable],
    warmups: int,
    most_replays: int = 6,
    pool_options: bool = True,
) -> SearchStrategy[Plan]:
    """Plans over ``cases``: one to three graphs of different keys, then three or more replays in a drawn order.

    With ``pool_options`` some plans also share the pool with a graph of the harness's own, and some evict graphs half
    way.
    """

    @st.composite
    def draw_plan(draw: st.DrawFn) -> Plan:
        captures = [draw(cases)]
        replays = draw(st.lists(cases, min_size=3, max_size=most_replays))
        keys = {key(captures[0])}
        for extra in draw(st.lists(cases, max_size=2)):
            if key(extra) not in keys:
                keys.add(key(extra))
                captures.append(extra)
        plan = Plan(captures=tuple(captures), replays=tuple(replays), warmups=warmups).through_json()
        return _with_options(plan, key) if pool_options else plan

    return draw_plan()


def _with_options(plan: Plan, key: Callable[[Case], Hashable]) -> Plan:
    """The plan with the options that follow from its own bits.

    Drawing them would change what every later plan of the same seed holds.
    """
    choice = Random(plan.digest)
    neighbour = choice.random() < _NEIGHBOURS
    keys = [key(case) for case in plan.replays]
    every = {*keys, *map(key, plan.captures)}
    # Before those replays some graph has had its last.
    idle = [number for number in range(len(keys)) if not every <= {*keys[number:]}]
    evict = choice.choice(idle) if idle and choice.random() < _EVICTIONS else None
    return replace(plan, neighbour=neighbour, evict=evict)


def sample(component: Any, wanted: Callable[[Case], bool] = lambda case: True) -> Case:
    """A case of some size: the last replay among a few drawn plans that is ``wanted``.

    Raises:
        UsageError: none of them is.
    """
    found: list[Case] = []

    def draw(plan: Plan) -> None:
        found.extend(case for case in plan.replays[-1:] if wanted(case))

    generate(plans(component.cases(), component.key, component.warmup), draw, examples=40, seeded=1)
    if not found:
        raise UsageError(f"{component.title}: none of the drawn cases is wanted; give one with --case")
    return found[min(7, len(found) - 1)]
