"""Serving traces: the batches that a running engine would stage for the requests of a CSV file.

A component opts in with three methods beside its contract:

- ``for_trace(longest) -> Component``: a component of its kind whose capacity follows the longest request, or its own
  maximum where that is less;
- ``trace_engine() -> Engine``: rows, query tokens, page size and capacity of that component;
- ``trace_case(step) -> Case``: the case of one engine step.
"""

from __future__ import annotations

import csv
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphcheck.errors import MalformedFile, UsageError

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from graphcheck.component import Component
    from graphcheck.plan import Plan

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_STEPS = 12_000


@dataclass(frozen=True)
class Request:
    """One request of a trace, tokens."""

    context: int
    generated: int

    @property
    def longest(self) -> int:
        """Its length when its last token is written."""
        return self.context + self.generated


@dataclass(frozen=True)
class Engine:
    """What serves the requests.

    Args:
        rows: requests at one time.
        qo_len: query tokens of each request in a step.
        page: tokens of a page.
        capacity: tokens that one request may reach, the query tokens of its last step included.
    """

    rows: int
    qo_len: int
    page: int
    capacity: int


@dataclass(frozen=True)
class Step:
    """One step of the engine.

    Args:
        number: counted from 0.
        kv_lens: length of each live request, tokens, this step's query tokens included; live rows lead.
        accepted: tokens that each of them kept in the step before, 1..qo_len; qo_len for those that just joined.
        pages: physical pages of each live request.
        joined, left: how many requests joined before this step and left after the one before.
        crossed: whether a row needs a page more than in the step before.
    """

    number: int
    kv_lens: tuple[int, ...]
    accepted: tuple[int, ...]
    pages: tuple[tuple[int, ...], ...]
    joined: int
    left: int
    crossed: bool

    @property
    def eventful(self) -> bool:
        """Whether the batch changed by more than a few tokens."""
        return bool(self.joined or self.left or self.crossed)


@dataclass(frozen=True)
class Summary:
    """Requests that the trace offered, and those that the capacity cannot hold."""

    offered: int
    refused: int


def read(path: Path) -> list[Request]:
    """The requests of a trace in the order of the file.

    Raises:
        MalformedFile: it cannot be read, lacks a column, or a line holds no token counts; names the line.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            return list(_rows(path, csv.DictReader(file)))
    except OSError as error:
        raise MalformedFile(f"cannot read the trace {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise MalformedFile(f"the trace {path} is no text: {error.reason}; expected a CSV file") from error


def _rows(path: Path, reader: Any) -> Iterator[Request]:
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise MalformedFile(f"the trace {path} lacks the column {', '.join(missing)}; expected {','.join(COLUMNS)}")
    count = 0
    for row in reader:
        try:
            request = Request(int(row["ContextTokens"]), int(row["GeneratedTokens"]))
        except (TypeError, ValueError):
            request = Request(-1, -1)
        if request.context < 1 or request.generated < 0:
            raise MalformedFile(
                f"line {reader.line_num} of {path} has ContextTokens {row['ContextTokens']!r} and GeneratedTokens "
                f"{row['GeneratedTokens']!r}; expected whole numbers of at least 1 and 0"
            )
        count += 1
        yield request
    if not count:
        raise MalformedFile(f"the trace {path} holds no request")


def simulate(requests: list[Request], engine: Engine, seed: int = 0) -> Iterator[Step]:
    """The steps of an engine that serves ``requests`` in order; those beyond its capacity are passed over.

    A request joins as soon as a row is free, keeps 1 to ``qo_len`` tokens a step, and leaves when its tokens are
    generated; the last live row moves into the row it leaves, and its pages go back.
    """
    draw = random.Random(seed)
    waiting = deque(request for request in requests if request.longest + engine.qo_len <= engine.capacity)
    free = list(range(engine.rows * -(-engine.capacity // engine.page)))[::-1]
    live: list[_Live] = []
    number = 0
    while waiting or live:
        left = 0
        for row in reversed(range(len(live))):
            if live[row].left <= 0:
                free += live[row].pages[::-1]
                live[row] = live[-1]
                live.pop()
                left += 1
        joined = 0
        while waiting and len(live) < engine.rows:
            request = waiting.popleft()
            live.append(_Live(request.context, request.generated, engine.qo_len, []))
            joined += 1
        if not live:
            continue
        crossed = False
        for request_ in live:
            fresh = not request_.pages
            while len(request_.pages) * engine.page < request_.length + engine.qo_len:
                request_.pages.append(free.pop())
                crossed = crossed or not fresh
        yield Step(
            number=number,
            kv_lens=tuple(request_.length + engine.qo_len for request_ in live),
            accepted=tuple(request_.accepted for request_ in live),
            pages=tuple(tuple(request_.pages) for request_ in live),
            joined=joined,
            left=left,
            crossed=crossed,
        )
        number += 1
        for request_ in live:
            request_.accepted = draw.randint(1, engine.qo_len)
            request_.length += request_.accepted
            request_.left -= request_.accepted


@dataclass
class _Live:
    """A request that is being served: tokens with KV, tokens left to generate, tokens kept last, pages."""

    length: int
    left: int
    accepted: int
    pages: list[int]


def trace_plans(component: Component, path: Path) -> tuple[Component, SearchStrategy[Plan], Summary]:
    """A component sized for a trace, plans whose replays are consecutive engine steps, and what was refused.

    Raises:
        UsageError: the component does not take traces.
        MalformedFile: the trace cannot be read.
    """
    from hypothesis import strategies as st

    from graphcheck.plan import Plan

    methods = ("for_trace", "trace_engine", "trace_case")
    missing = [name for name in methods if not callable(getattr(component, name, None))]
    if missing:
        raise UsageError(
            f"{component.title} does not take traces: it lacks {', '.join(missing)}; see graphcheck/trace.py"
        )
    requests = read(path)
    taker: Any = component
    longest = max(request.longest for request in requests)
    sized = taker.for_trace(longest)
    sized.graphcheck_tokens = longest
    engine = sized.trace_engine()
    refused = sum(request.longest + engine.qo_len > engine.capacity for request in requests)
    steps = list(islice(simulate(requests, engine), _STEPS))
    if len(steps) < 4:
        raise UsageError(
            f"the trace {path} gives {len(steps)} engine steps of at most {engine.capacity} tokens; need 4"
        )
    last = len(steps) - 4
    eventful = [max(0, step.number - 1) for step in steps[: last + 1] if step.eventful] or [0]

    def build(start: int, at: int, count: int) -> Plan:
        window = steps[start : start + count]
        return Plan(
            captures=(sized.trace_case(steps[at]),),
            replays=tuple(sized.trace_case(step) for step in window),
            warmups=sized.warmup,
        ).through_json()

    starts = st.one_of(st.sampled_from(eventful), st.integers(0, last))
    return sized, st.builds(build, starts, st.integers(0, last), st.integers(3, 4)), Summary(len(requests), refused)
