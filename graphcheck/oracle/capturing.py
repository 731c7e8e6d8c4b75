"""Warm-up and capture of arm A: no steps, so every declared state is as before when they are over."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch

from graphcheck.backend.protocol import Recording
from graphcheck.cases import Case
from graphcheck.compare import Mismatch, describe, differs
from graphcheck.errors import CaptureRefused
from graphcheck.finding import Finding, Severity
from graphcheck.oracle.arm import Arm, Snapshot, clone, put_back, snapshot, storage_key
from graphcheck.oracle.symptom import Kind, Outcome, Symptom
from graphcheck.watch import capture_status, context, host_state, reachable
from graphcheck.watch.host_state import Rebound


@dataclass
class Graph:
    """One captured graph of arm A.

    Args:
        recording: the graph.
        case: what it was captured at.
        undeclared: storage that it writes and nobody declares, by name.
        host_state: what the region changed of the component's Python state while it was captured.
        rebound: tensor attributes that the region assigned while it was captured.
        context: what the process was set to at the capture (autocast, grad mode, determinism, stream, device).
        kept: by name and address of a buffer, the mask of what no scratch buffer overlaps; filled as it is asked for.
    """

    recording: Recording
    case: Case
    undeclared: dict[str, torch.Tensor]
    host_state: tuple[str, ...]
    rebound: Rebound
    context: context.Context
    kept: dict[tuple[str, int], torch.Tensor | None] = field(default_factory=dict)


def capture(
    arm: Arm,
    case: Case,
    warmups: int,
    pool: object,
    outcome: Outcome,
    unaware: bool = False,
    earlier: Sequence[Graph | None] = (),
) -> Graph | None:
    """Warm up and capture ``arm`` at ``case``; None if the case or the capture was refused.

    The state that ``mutates`` declares is put back to what it was before staging, except for what ``restores``
    promises: that is compared after every warm-up run and after the capture.

    Args:
        unaware: the region is told that nothing is capturing.
        earlier: the graphs captured before; what they return is declared.
    """
    component = arm.component
    initial = snapshot({name: arm.buffers[name] for name in component.mutates})
    rng = arm.rng
    outcome.counts.cases += 1
    refusal = arm.stage(case)
    if refusal is not None:
        outcome.counts.refused += 1
        outcome.refusals.append(refusal)
        put_back(dict(arm.buffers.items()), initial)
        return None
    staged = snapshot({name: arm.buffers[name] for name in component.mutates})
    hidden = snapshot(arm.undeclared())
    own = [name for name in component.mutates if name not in component.restores]
    for number in range(warmups):
        arm.with_rng(lambda: _warm_up(arm))
        _compare_restores(arm, staged, f"after warm-up run {number + 1} of {warmups}", outcome)
        put_back(dict(arm.buffers.items()), staged, own)
    _note_drift(arm, hidden, outcome)
    before, ambient = reachable.plain_state(component), context.snapshot()
    held = host_state.identities(reachable.tensors(component))
    try:
        with capture_status.denied() if unaware else nullcontext():
            recording = arm.with_rng(lambda: arm.record(pool))
    except CaptureRefused as refused:
        outcome.symptoms.append(Symptom(Kind.REFUSAL, refusal_finding(refused, case)))
        return None
    finally:
        arm.rng = rng
    outcome.counts.captures += 1
    _compare_restores(arm, staged, "after capture", outcome)
    put_back(dict(arm.buffers.items()), initial, own)
    changed = host_state.mutated(before, reachable.plain_state(component))
    rebound = host_state.rebound(held, reachable.tensors(component))
    outcome.host_state = tuple(dict.fromkeys((*outcome.host_state, *changed, *rebound)))
    recording.name(arm.names())
    for finding in recording.findings():
        if finding.severity is Severity.ERROR:
            outcome.symptoms.append(Symptom(Kind.RECORD, finding))
        else:
            outcome.notes.append(finding)
    _judge_host_buffers(recording, outcome)
    _judge_allocation(arm, recording, outcome)
    returned = [recording, *(graph.recording for graph in earlier if graph is not None)]
    return Graph(recording, case, _undeclared(arm, returned, outcome), changed, rebound, ambient)


def _warm_up(arm: Arm) -> None:
    manager = arm.call("around_warmup", arm.component.around_warmup, arm.buffers)
    with manager:
        arm.run()


def _compare_restores(arm: Arm, staged: Snapshot, when: str, outcome: Outcome) -> None:
    """Symptoms for buffers of ``restores`` that differ from what was staged."""
    if arm.component.restores:
        outcome.rungs.add("side_effects")
    for name in arm.component.restores:
        different = differs(staged[name], arm.buffers[name])
        if not bool(different.any()) or outcome.of(Kind.RESTORE):
            continue
        mismatch = describe(name, staged[name], arm.buffers[name], different)
        finding = Finding(
            code="GC604",
            message=f"{name}, which the component promises to restore, is not what was staged {when}",
            place=mismatch.place(None),
            expected=mismatch.expected,
            got=mismatch.got,
            advice="save it before each warm-up run and put it back by value, in place, also when a run raises",
            evidence=(mismatch.summary(),),
        )
        outcome.symptoms.append(Symptom(Kind.RESTORE, finding, name=name))


def _note_drift(arm: Arm, hidden: Snapshot, outcome: Outcome) -> None:
    """Remember the undeclared state that warm-up changed: the first suspect for a mismatch."""
    now = arm.undeclared()
    for name, before in hidden.items():
        if name in now and now[name].shape == before.shape and bool(differs(before, now[name]).any()):
            outcome.drifted.append(name)


def refusal_finding(refused: CaptureRefused, case: Case | None, replay: int | None = None) -> Finding:
    """The finding for an operation that CUDA refuses: of a capturing stream, or after it around a replay."""
    if replay is not None:
        return Finding(
            code=refused.code,
            message=refused.what,
            where=refused.where,
            place=f"replay {replay} at {case}",
            expected="nothing around a replay that only makes sense inside the capture",
            got=refused.where.source if refused.where is not None else "",
            advice=refused.advice,
        )
    return Finding(
        code=refused.code,
        message=refused.what,
        where=refused.where,
        place=f"capture at {case}" if case is not None else "capture",
        expected="a region without host reads, synchronisation or host-built tensors",
        got=refused.where.source if refused.where is not None else "",
        advice=refused.advice,
    )


def _judge_host_buffers(recording: Recording, outcome: Outcome) -> None:
    """A finding for each pinned buffer that the graph both copies from and writes."""
    for external in recording.externals():
        if external.tag != "device" and external.reads and external.writes:
            finding = Finding(
                code="GC408",
                message=f"{external.nbytes} bytes of {external.tag} memory are source and destination in one graph",
                where=external.where,
                place=f"0x{external.address:x}",
                expected="a host buffer that only the host fills",
                got="a graph that reads at the next replay what it wrote at this one",
                advice="copy the result into a host buffer of its own",
            )
            outcome.symptoms.append(Symptom(Kind.RECORD, finding))


def _judge_allocation(arm: Arm, recording: Recording, outcome: Outcome) -> None:
    """Findings on pool memory, by what the component declares."""
    asked = [allocation for allocation in recording.allocations() if allocation.kind != "workspace"]
    declared = arm.component.allocation
    if not asked:
        return
    total, first = sum(allocation.nbytes for allocation in asked), asked[0]
    if declared == "none":
        finding = Finding(
            code="GC505",
            message=f"the region allocates {len(asked)} times ({total} bytes), and the component declares none",
            where=first.where,
            expected='no allocator activity (allocation = "none")',
            got=f"{first.nbytes} bytes, {first.kind}, first",
            advice="allocate at prepare time and pass out= buffers, or declare a byte budget",
        )
        outcome.symptoms.append(Symptom(Kind.ALLOCATION, finding))
        return
    peak = recording.peak_pool_bytes()
    if isinstance(declared, int) and peak > declared:
        largest = max(asked, key=lambda allocation: allocation.nbytes)
        finding = Finding(
            code="GC505",
            message=f"the region keeps {peak} bytes of pool memory alive at one time, over its budget of {declared}",
            where=largest.where,
            expected=f"at most {declared} bytes",
            got=f"{peak} bytes; the largest request is {largest.nbytes} bytes",
            advice="work in smaller pieces, or raise the budget if the memory is there",
        )
        outcome.symptoms.append(Symptom(Kind.ALLOCATION, finding))
        return
    outcome.notes.append(
        Finding(
            code="GC505",
            message="the region allocates from the graph's pool while it is captured",
            severity=Severity.NOTE,
            where=first.where,
            expected="nothing, or a declared budget",
            advice='allocate at prepare time if this must not happen, and declare allocation = "none"',
        )
    )


def judge_growth(declared: str | int, graphs: list[Graph], outcome: Outcome) -> None:
    """A finding if the graphs of a plan, each within the budget, together keep more pool memory than it allows."""
    if not isinstance(declared, int) or len(graphs) < 2:
        return
    kept = [
        [allocation for allocation in graph.recording.allocations() if allocation.kind in ("output", "escaping")]
        for graph in graphs
    ]
    sizes = [sum(allocation.nbytes for allocation in asked) for asked in kept]
    if sum(sizes) <= declared or max(graph.recording.peak_pool_bytes() for graph in graphs) > declared:
        return
    largest = max((allocation for asked in kept for allocation in asked), key=lambda allocation: allocation.nbytes)
    finding = Finding(
        code="GC506",
        message=f"{len(graphs)} graphs keep {sum(sizes)} bytes of the pool for their outputs, over the budget of {declared}",
        where=largest.where,
        expected=f"at most {declared} bytes, however many graphs there are",
        got=f"{', '.join(str(size) for size in sizes)} bytes, graph by graph",
        advice="write the outputs of all graphs into one buffer made at prepare time, and capture the largest first",
    )
    outcome.symptoms.append(Symptom(Kind.ALLOCATION, finding))


def _undeclared(arm: Arm, recordings: Sequence[Recording], outcome: Outcome) -> dict[str, torch.Tensor]:
    """Storage that the first record writes and nobody declares; a symptom for each, and the tensors to put back.

    What any of the records returns is declared.
    """
    component = arm.component
    declared = [arm.buffers[name] for name in (*component.mutates, *component.scratch)]
    declared += [tensor for recording in recordings for tensor in recording.outputs.values()]
    named = {storage_key(tensor): name for name, tensor in reversed(list(arm.names().items()))}
    found: dict[str, torch.Tensor] = {}
    for number, storage in enumerate(recordings[0].undeclared_writes(declared)):
        name = named.get(storage.data_ptr(), f"storage {number}")
        found[name] = storage
        finding = Finding(
            code="GC962",
            message=f"the region writes {name}, which is neither an output nor in mutates nor in scratch",
            place=f"{storage.numel()} bytes",
            expected="every write declared",
            got=f"writes to {name}",
            advice="declare it in mutates (state), in scratch (never compared) or return it as an output",
        )
        outcome.symptoms.append(Symptom(Kind.UNDECLARED, finding, name=name))
    return found


def saved_undeclared(graph: Graph) -> Snapshot:
    """Copies of the undeclared storage that the graph writes."""
    return {name: clone(tensor) for name, tensor in graph.undeclared.items()}


def mismatch_finding(code: str, message: str, mismatch: Mismatch, case: Case, step: int, advice: str) -> Finding:
    """A finding for bits that differ at one replay."""
    return Finding(
        code=code,
        message=message,
        place=f"replay {step}, {mismatch.place(case)}",
        expected=mismatch.expected,
        got=mismatch.got,
        advice=advice,
        evidence=(mismatch.summary(), f"at {case}"),
    )
