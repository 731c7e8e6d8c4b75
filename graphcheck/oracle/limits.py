"""Causes in the limits: a case beyond what the buffers hold, another algorithm, another count of random numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from graphcheck.cases import Case, Integer, Lengths
from graphcheck.compare import differs, region_mask
from graphcheck.component import Component
from graphcheck.errors import CaptureRefused
from graphcheck.finding import Finding
from graphcheck.oracle.arm import Arm, clone
from graphcheck.oracle.lockstep import Options
from graphcheck.oracle.symptom import Kind

if TYPE_CHECKING:
    from graphcheck.oracle.attribution import Attribution

# Far above what rounding in another order gives, far below what wrong data gives.
_CLOSE = 1e-3


def beyond_capacity(study: Attribution) -> Finding | None:
    """GC706 if the mismatch sets in exactly where a length exceeds an extent, and the region is blind beyond it."""
    if study.symptom.kind is not Kind.EAGER or study.region_cures():
        return None
    for name, value in study.case.fields.items():
        if not isinstance(value, (Lengths, Integer)):
            continue
        top = max(value.values) if isinstance(value, Lengths) else value.value
        extents = _extents(study)
        bound = max((extent for extent in extents if extent < top), default=0)
        # A length may also cross a page size; only beyond a capacity does the region not see the difference.
        if bound < max(2, value.low) or not _blind(study, name, bound):
            continue
        within, past = (
            replace(study.plan, replays=tuple(_clamp(case, name, bound + more) for case in study.plan.replays))
            for more in (0, 1)
        )
        if not study.gone(f"{name} clamped to {bound}", Options(), within) or study.gone(
            f"{name} clamped to {bound + 1}", Options(), past
        ):
            continue
        return study.named(
            "GC706",
            f"{name} reaches {top}, and {extents[bound]} hold {bound}: the replay is outside the captured capacity",
            f"refuse the case in stage() when {name} exceeds {bound}, or size the buffers for it",
        )
    return None


def _extents(study: Attribution) -> dict[int, str]:
    """The extents of the buffers, each with the names of those that have it."""
    with study.backend.active():
        buffers = Arm(study.component, study.backend).on_device()
    found: dict[int, str] = {}
    for name, tensor in buffers.items():
        for extent in tensor.shape:
            found[extent] = f"{found[extent]}, {name}" if extent in found else name
    return found


def _blind(study: Attribution, name: str, bound: int) -> bool:
    """Whether fresh regions give the same bits for the failing case and for the case clamped to ``bound``."""
    answers = []
    with study.backend.active():
        rng = study.backend.rng_state()
        for case in (study.case, _clamp(study.case, name, bound)):
            arm = Arm(study.component, study.backend)
            arm.rng = rng
            if arm.stage(case) is not None:
                return False
            regions = arm.written(case)
            outputs = arm.with_rng(arm.run)
            answers.append({key: (clone(tensor), regions.get(key)) for key, tensor in outputs.items()})
        return not any(
            bool(differs(tensor, answers[1][key][0], region_mask(tensor, region)).any())
            for key, (tensor, region) in answers[0].items()
        )


def _clamp(case: Case, name: str, bound: int) -> Case:
    """The case with one field clamped."""
    value = case.fields[name]
    if isinstance(value, Lengths):
        value = replace(value, values=tuple(min(length, bound) for length in value.values))
    elif isinstance(value, Integer):
        value = replace(value, value=min(value.value, bound))
    return case.replaced(**{name: value})


def other_algorithm(study: Attribution) -> Finding | None:
    """GC951 if run() and the component's own eager() issue other operations and agree up to rounding."""
    if study.symptom.kind is not Kind.EAGER or type(study.component).eager is Component.eager:
        return None
    if study.outcome.of(Kind.SIDE_EFFECT):
        return None  # an algorithm that writes elsewhere is no other way to the same answer
    with study.backend.active():
        captured, eager = Arm(study.component, study.backend), Arm(study.component, study.backend)
        if captured.stage(study.case) is not None or eager.stage(study.case) is not None:
            return None
        ours, theirs = captured.with_rng(captured.run), eager.with_rng(lambda: eager.eager(study.case))
        regions = eager.written(study.case)
        for name in study.component.mutates:
            ours[name], theirs[name] = captured.buffers[name], eager.buffers[name]
        if not all(_close(ours[name], theirs[name], regions.get(name)) for name in theirs if name in ours):
            return None
    run, other = study.record(study.case), _eager_record(study)
    if run is None or (other is not None and [operation.name for operation in run] == other):
        return None
    mine = [operation.name for operation in run]
    evidence = [f"captured: {', '.join(mine[:8])}"]
    if other is not None:
        evidence.append(f"eager: {', '.join(other[:8])}")
    return study.named(
        "GC951",
        f"run() and eager() choose other algorithms, and {study.symptom.name} differs by rounding",
        "pin the algorithm, the workspace and the padded shape in both, or compare through reference() and a tolerance",
        *evidence,
    )


def _close(ours: torch.Tensor, theirs: torch.Tensor, region: object) -> bool:
    """Whether the common part of two outputs agrees up to rounding."""
    cut = ours[tuple(slice(0, extent) for extent in theirs.shape)]
    mask = region_mask(cut, region) if cut.shape == ours.shape else None
    if not theirs.is_floating_point():
        return bool((cut == theirs).all())
    error, size = (cut.double() - theirs.double()).abs(), theirs.double().abs()
    # Infinities and NaN are no rounding: they must stand in the same places.
    near = (theirs.isfinite() & (error <= _CLOSE * (1 + size))) | (cut == theirs) | (cut.isnan() & theirs.isnan())
    far = ~near
    return not bool((far if mask is None else far & mask).any())


def _eager_record(study: Attribution) -> list[str] | None:
    """Names of the operations that eager() issues, where a capture can see them."""
    with study.backend.active():
        arm = Arm(study.component, study.backend)
        if arm.stage(study.case) is not None:
            return None
        try:
            recording = arm.record_as(lambda: arm.eager(study.case), study.backend.pool())
        except CaptureRefused:
            return None
        names = [operation.name for operation in recording.operations()]
        recording.close()
        return names


def random_stream(study: Attribution) -> Finding | None:
    """GC803 if an earlier step drew another count of random numbers in one arm, and the mismatch follows from it."""
    apart = study.outcome.rng_apart
    if apart is None or study.symptom.step is None or apart >= study.symptom.step:
        return None
    if not study.gone("both arms start each step from one generator state", Options(shared_rng=True)):
        return None
    return study.named(
        "GC803",
        f"replay {apart} advances the generator by another amount than the eager step, and what is drawn later differs",
        "draw the same amount whatever the case, or give each user of random numbers a generator of its own",
    )
