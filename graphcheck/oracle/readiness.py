"""Causes in warm-up: one-time work that replays again and again, lazy paths that had not settled, cached casts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphcheck.finding import Finding
from graphcheck.oracle.lockstep import Options
from graphcheck.oracle.symptom import Kind

if TYPE_CHECKING:
    from graphcheck.oracle.attribution import Attribution

_MORE = 10
_COPIES = ("copy", "clone", "cast", "convert")


def not_settled(study: Attribution) -> Finding | None:
    """GC603 if the capture was the first call and holds work of the first call; GC605 if later calls do other work."""
    if study.symptom.kind is Kind.HISTORY:
        return None
    case, needed = study.plan.captures[0], study.component.warmup
    if needed == 0 and study.plan.warmups == 0:
        first, second = study.record(case, warmups=0), study.record(case, warmups=1)
        once = study.only_in(first, second) if first is not None and second is not None else []
        if once and study.gone("captured after a warm-up run", Options(warmups=1)):
            return study.named(
                "GC603",
                "one-time work of the first call was captured, and every replay does it again",
                "do it at prepare time, or let a warm-up run do it before the capture",
                f"in the first call only: {', '.join(once[:6])}",
            )
    records = [study.record(case, warmups=number) for number in (needed, needed + _MORE, needed + _MORE + 1)]
    now, later, last = ([operation.name for operation in record or []] for record in records)
    if any(record is None for record in records) or now == later or later != last:
        return None
    study.tried.append(f"recorded after {needed} and after {needed + _MORE} warm-up runs: other operations")
    extra = study.only_in(records[0] or [], records[1] or [])
    return study.named(
        "GC605",
        f"the capture came too early: after {needed} warm-up runs the region still does work that later calls do not",
        "warm up until two calls issue the same operations, each with the shapes to be captured",
        *([f"in the early calls only: {', '.join(extra[:6])}"] if extra else []),
    )


def only_copies(names: list[str]) -> bool:
    """Whether work that only the first call did amounts to casts and copies: a derived tensor that is cached."""
    return bool(names) and all(any(part in name.split(" (")[0].lower() for part in _COPIES) for name in names)
