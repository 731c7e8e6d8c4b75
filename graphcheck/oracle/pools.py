"""Causes in the graphs' pool: other graphs that overwrite it, graphs that were dropped, outputs kept too long."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from graphcheck.finding import Finding
from graphcheck.oracle import graph_key
from graphcheck.oracle.lockstep import Options, run_plan
from graphcheck.oracle.symptom import Kind

if TYPE_CHECKING:
    from graphcheck.oracle.attribution import Attribution


def neighbour(study: Attribution) -> Finding | None:
    """GC502 if the mismatch is gone when no other component's graph runs in the pool."""
    if not study.plan.neighbour:
        return None
    if not study.gone("without the neighbour in the pool", Options(), replace(study.plan, neighbour=False)):
        return None
    return study.named(
        "GC502",
        f"{study.symptom.name} depends on pool memory that another component's graph may overwrite between two steps",
        "copy outputs out before another graph of the pool runs, and keep what outlives a step in buffers of its own",
        *_overlaps(study),
    )


def eviction(study: Attribution) -> Finding | None:
    """GC411 if the mismatch is gone when no graph is dropped."""
    if study.plan.evict is None:
        return None
    if not study.gone("without dropping graphs that no later replay needs", Options(), replace(study.plan, evict=None)):
        return None
    return study.named(
        "GC411",
        f"{study.symptom.name} depends on memory that another graph's capture allocated and that went with that graph",
        "allocate what several graphs use before the first capture, or drop all graphs of the pool together",
        *_overlaps(study),
    )


def shared(study: Attribution) -> Finding | None:
    """GC502 if the mismatch is gone when each graph has a pool of its own."""
    order = [study.component.key(case) for case in (*study.plan.captures, *study.plan.replays)]
    if len(set(order)) < 2:
        return None
    if not study.gone("each graph in a pool of its own", Options(own_pools=True)):
        return None
    captured = sorted(study.plan.replays, key=lambda case: order.index(study.component.key(case)))
    if tuple(captured) != study.plan.replays:
        study.gone("replayed in capture order", Options(), replace(study.plan, replays=tuple(captured)))
    return study.named(
        "GC502",
        f"{study.symptom.name} lies in pool memory that another graph of the pool overwrites while it is still needed",
        "copy outputs out before another graph of the pool runs, or give the graphs separate pools",
        *_overlaps(study),
    )


def kept_output(study: Attribution) -> Finding | None:
    """GC501, or GC504 where the consumer holds memory that the region gave back."""
    if study.symptom.kind is not Kind.OBSERVE:
        return None
    if study.symptom.name in study.outcome.reissued:
        return study.named(
            "GC504",
            f"{study.symptom.name} lies in memory that the region used and gave back while it was captured: the "
            "allocator handed it out again, and each replay overwrites it",
            "hold every block that the capture touched until the graph is dropped, or allocate from the graph's pool",
        )
    key = study.component.key(study.case)
    alone = graph_key.only(study.component, study.plan, key)
    if alone != study.plan and study.gone("without the graphs of other keys", Options(), alone):
        return study.named(
            "GC504",
            f"{study.symptom.name} lies in memory that was given to the graph of another key as well",
            "hold every block that a graph uses until the graph is dropped, or allocate from the graphs' pool",
        )
    return study.named(
        "GC501",
        f"{study.symptom.name} is an output kept across replays, and each replay overwrites it",
        "clone an output before keeping it",
    )


def _overlaps(study: Attribution) -> list[str]:
    """Which graphs write where another one keeps or reads something, in words."""
    options = Options(immediate=True, pool_map=True, rungs=frozenset({"eager"}))
    return run_plan(study.component, study.plan, study.backend, options).overlaps
