"""Differential capture: record under two cases and compare; what changed and is no address was baked from the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from difflib import SequenceMatcher

from graphcheck.backend.protocol import Operation
from graphcheck.finding import Finding

_EXTENTS = (
    "size",
    "dim",
    "start",
    "end",
    "length",
    "step",
    "stride",
    "repeats",
    "split",
    "grid",
    "shape",
    "width",
    "num",
)


def baked(first: Sequence[Operation], second: Sequence[Operation], cases: tuple[str, str]) -> list[Finding]:
    """Findings for everything that differs between two records of one region and is no address.

    A scalar is GC301, an extent (a size, stride, slice bound, or a loop that runs another number of times) GC302, a
    different sequence of operations GC303, the same elements in another number of parts GC304.

    Args:
        first: the record at the capture case.
        second: the record at another case with the same graph key.
        cases: the two cases, as text.
    """
    names = [operation.name for operation in first], [operation.name for operation in second]
    shared = next(
        (number for number, (old, new) in enumerate(zip(*names, strict=False)) if old != new), min(map(len, names))
    )
    findings: list[Finding] = []
    # Up to where the sequences part: an extent that changed before is what makes them part.
    for number, (old, new) in enumerate(zip(first[:shared], second[:shared], strict=True)):
        change = _change(old, new)
        if change is not None:
            code, what, expected, got = change
            findings.append(
                Finding(
                    code=code,
                    message=f"operation {number} ({old.name}) freezes {what}, which depends on the case",
                    where=new.where or old.where,
                    place=f"recorded under {cases[0]} and under {cases[1]}",
                    expected=f"the same record for both cases, or the value in key(); {got} for the second case",
                    got=expected,
                    advice="read it from a device tensor, bake the capacity instead, or put it in the graph key",
                )
            )
    if not findings and names[0] != names[1]:
        return [_sequence(first, second, cases)]
    # Everything downstream of the first baked extent differs too; the first of each code is the cause.
    return list({finding.code: finding for finding in reversed(findings)}.values())[::-1]


def _change(old: Operation, new: Operation) -> tuple[str, str, str, str] | None:
    """Code, what changed, old value and new value; None if the operations agree."""
    before, after = dict(old.scalars), dict(new.scalars)
    for name in [*before, *(name for name in after if name not in before)]:
        if before.get(name) != after.get(name):
            code = "GC302" if any(part in name.lower() for part in _EXTENTS) else "GC301"
            return code, f"its argument {name}", str(before.get(name)), str(after.get(name))
    before, after = dict(old.geometry), dict(new.geometry)
    for name in [*before, *(name for name in after if name not in before)]:
        if before.get(name) != after.get(name):
            was, now = str(before.get(name)), str(after.get(name))
            if _regrouped(was, now):
                return "GC304", f"into how many parts {name} is split", was, now
            return "GC302", f"the extent of {name}", was, now
    return None


def _regrouped(was: str, now: str) -> bool:
    """Whether two descriptions of a tensor argument hold as many elements of one dtype in other extents."""
    (dtype, sizes), (other, others) = _extents(was), _extents(now)
    return dtype == other and sorted(sizes) != sorted(others) and math.prod(sizes) == math.prod(others)


def _extents(described: str) -> tuple[str, list[int]]:
    """Dtype and extents of a tensor argument, from its description."""
    dtype, _, rest = described.partition("[")
    return dtype, [int(size) for size in rest.partition("]")[0].split(",") if size.strip()]


def _sequence(first: Sequence[Operation], second: Sequence[Operation], cases: tuple[str, str]) -> Finding:
    """The finding for two records of different operations: a frozen branch, or a loop bound frozen by the host."""
    names = [operation.name for operation in first], [operation.name for operation in second]
    kind, a0, a1, b0, b1 = next(
        block for block in SequenceMatcher(a=names[0], b=names[1], autojunk=False).get_opcodes() if block[0] != "equal"
    )
    same_kinds = set(names[0]) == set(names[1])
    spot = second[b0] if b0 < len(second) else first[min(a0, len(first) - 1)] if first else None
    return Finding(
        code="GC302" if same_kinds and len(first) != len(second) else "GC303",
        message=(
            f"the region records {len(first)} operations under one case and {len(second)} under another"
            if same_kinds
            else "the region records other operations under another case: a host branch was frozen"
        ),
        where=spot.where if spot is not None else None,
        place=f"recorded under {cases[0]} and under {cases[1]}",
        expected="the same operations for both cases, or the choice in key()",
        got=f"{_some(names[0][a0:a1])} against {_some(names[1][b0:b1])} ({kind} at operation {a0})",
        advice="choose on the device (torch.where), bake the larger bound and mask, or put the choice in the graph key",
    )


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:4]) or "nothing"
    return f"{shown}, ... ({len(names)})" if len(names) > 4 else shown
