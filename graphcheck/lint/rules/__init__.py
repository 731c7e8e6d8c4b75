"""The rules, by code family: each reads a region's log and says what is wrong there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from graphcheck.lint.log import Log
from graphcheck.lint.rules import (
    frozen,
    host,
    lifetimes,
    once,
    order,
    outputs,
    pinned,
    plans,
    randomness,
    ranks,
    shapes,
    streams,
    sync,
    warmup,
)
from graphcheck.lint.rules.problem import Problem

__all__ = ["CODES", "RULES", "Problem"]

Rule = Callable[[Log], Iterator[Problem]]

RULES: dict[Rule, tuple[str, ...]] = {
    rule: codes
    for family in (
        sync,
        streams,
        order,
        frozen,
        host,
        lifetimes,
        pinned,
        outputs,
        warmup,
        once,
        plans,
        shapes,
        randomness,
        ranks,
    )
    for rule, codes in family.RULES.items()
}

OWN = ("GC990", "GC991", "GC992", "GC993")
CODES = tuple(sorted({code for codes in RULES.values() for code in codes} | set(OWN)))
