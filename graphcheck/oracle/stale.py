"""Stale and padded inputs: which buffer was not refreshed, only partly refreshed, or never written at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch

from graphcheck.backend.protocol import Backend
from graphcheck.cases import Case
from graphcheck.compare import differs, region_mask
from graphcheck.component import Component
from graphcheck.finding import Finding
from graphcheck.oracle.arm import Arm, clone, poison_all, snapshot, storage_key
from graphcheck.oracle.symptom import Kind, Symptom
from graphcheck.plan import Plan
from graphcheck.poison import poison, poisoned, zero_where

_ADVICE = {
    "GC305": "run the same planning before every replay, into the same buffers",
    "GC306": "rebuild the table before every replay, in place, over buffers that do not move",
    "GC312": "let one function write the layout for capture and for every replay",
    "GC702": "fill the tail with a neutral value on every refresh",
    "GC705": "write the neutral value when the optional input is absent",
}


@dataclass(frozen=True)
class _Stale:
    """A static input that a lived-in arm and a fresh arm hold differently after staging one case."""

    name: str
    code: str
    share: float


def explain(component: Component, plan: Plan, symptom: Symptom, backend: Backend) -> Finding | None:
    """The finding for the static input that staging left stale; None if every input is as a fresh arm's.

    Compared are arm A's input after the plan's history (``lived``), a fresh arm's after staging the failing case only
    (``fresh``) and its contents after allocation (``initial``). Where they differ and fresh equals initial, the staging
    of this case never writes there: a whole buffer is an omitted input, a part of it a stale tail. Where a fresh
    staging does write and the lived-in arm's does not, a plan was not refreshed; where both write, the layouts differ.
    """
    step = symptom.step or 0
    with backend.active():
        lived, fresh = Arm(component, backend), Arm(component, backend)
        initial = snapshot(fresh.on_device())
        for case in (*plan.captures, *plan.replays[:step]):
            lived.stage(case)
        inputs, _ = _roles(component, plan.replays[step], backend)
        if fresh.stage(plan.replays[step]) is not None:
            return None
        tables = {name: _addresses(fresh.buffers[name], fresh) for name in inputs}
        before = {name: clone(lived.buffers[name]) for name in inputs}
        lived.stage(plan.replays[step])
        after = {name: clone(lived.buffers[name]) for name in inputs}
        for name, tensor in before.items():
            lived.buffers[name].copy_(tensor)
            poison(lived.buffers[name])
        lived.stage(plan.replays[step])
        found = [
            stale
            for name in inputs
            if (stale := _judge(name, after[name], fresh.buffers[name], initial[name], lived.buffers[name])) is not None
        ]
        found = [
            replace(stale, code="GC306") if stale.code == "GC305" and tables[stale.name] else stale
            for stale in found
            # A table of addresses that is rebuilt differs from a fresh arm's, whose buffers lie elsewhere.
            if stale.code == "GC305" or not tables[stale.name]
        ]
    if not found:
        return None
    worst = min(found, key=lambda stale: ("GC306", "GC305", "GC312", "GC705", "GC702").index(stale.code))
    message = {
        "GC305": f"{worst.name} is planned on the host once and not refreshed before this replay",
        "GC306": f"{worst.name} holds device addresses and is not rebuilt for this replay",
        "GC312": f"{worst.name} is laid out differently for the capture and for this replay",
        "GC702": f"{worst.name} keeps a stale tail: {worst.share:.0%} of it is left over from an earlier case",
        "GC705": f"{worst.name} is not refreshed for this case and keeps an earlier case's value",
    }[worst.code]
    return replace(symptom.finding, code=worst.code, message=message, advice=_ADVICE[worst.code])


def _inputs(component: Component, arm: Arm) -> list[str]:
    """Device buffers that are neither state nor scratch."""
    return [name for name in arm.on_device() if name not in (*component.mutates, *component.scratch)]


def _judge(
    name: str, lived: torch.Tensor, fresh: torch.Tensor, initial: torch.Tensor, restaged: torch.Tensor
) -> _Stale | None:
    if lived.shape != fresh.shape:
        return None
    different = differs(fresh, lived)
    if not bool(different.any()):
        return None
    count = int(different.sum())
    if not bool((differs(fresh, initial) & different).any()):
        untouched = not bool(differs(initial, fresh).any())
        return _Stale(name, "GC705" if untouched else "GC702", count / different.numel())
    rewritten = bool((~poisoned(restaged) & different).any())
    return _Stale(name, "GC312" if rewritten else "GC305", count / different.numel())


def _addresses(tensor: torch.Tensor, arm: Arm) -> bool:
    """Whether an integer tensor holds nothing but addresses inside tensors that the arm can name."""
    if tensor.dtype is not torch.int64 or not tensor.numel():
        return False
    spans = [(storage_key(other), other.untyped_storage().nbytes()) for other in arm.names().values() if other.numel()]
    return all(any(0 <= value - start < nbytes for start, nbytes in spans) for value in tensor.reshape(-1).tolist())


@dataclass(frozen=True)
class Unwritten:
    """An answer that depends on memory nobody wrote.

    Args:
        output: its name.
        inputs: the static inputs that hold such memory, each with the number of elements.
    """

    output: str
    inputs: Mapping[str, int]


def poison_in_fresh_answer(
    component: Component, case: Case, backend: Backend, *, region: bool = False
) -> Unwritten | None:
    """What in a fresh arm's answer depends on memory nobody wrote; None if nothing does.

    Two fresh arms stage and run the same case; in one, everything that allocation and staging left poisoned is zeroed
    first. State and scratch are left alone.

    Args:
        component: never allocated.
        case: the case.
        backend: not active.
        region: ask what is captured, where the eager engine runs other code.
    """
    with backend.active():
        answers = []
        unwritten: dict[str, int] = {}
        names, outputs = _roles(component, case, backend)
        rng = backend.rng_state()
        for zeroed in (False, True):
            arm = Arm(component, backend)
            arm.rng = rng
            poison_all(arm.buffers[name] for name in (*outputs, *component.scratch) if name in arm.on_device())
            if arm.stage(case) is not None:
                return None
            if zeroed:
                for name in names:
                    left = poisoned(arm.buffers[name])
                    zero_where(arm.buffers[name], left)
                    if bool(left.any()):
                        unwritten[name] = int(left.sum())
            regions = arm.written(case)
            answer = arm.with_rng(arm.run if region else partial(arm.eager, case))
            answers.append({name: (clone(tensor), regions.get(name)) for name, tensor in answer.items()})
        for name, (tensor, written) in answers[0].items():
            other = answers[1][name][0]
            if tensor.shape == other.shape and bool(differs(tensor, other, region_mask(tensor, written)).any()):
                return Unwritten(name, unwritten)
    return None


def _roles(component: Component, case: Case, backend: Backend) -> tuple[list[str], list[str]]:
    """Names of the static inputs and of the buffers that hold outputs, found by running a fresh arm once."""
    arm = Arm(component, backend)
    if arm.stage(case) is not None:
        return [], []
    held = {storage_key(tensor) for tensor in arm.eager(case).values()}
    inputs = _inputs(component, arm)
    outputs = [name for name in inputs if storage_key(arm.buffers[name]) in held]
    return [name for name in inputs if name not in outputs], outputs


def damage_follows_sentinel(
    component: Component, plan: Plan, symptom: Symptom, backend: Backend
) -> tuple[str, str] | None:
    """The damaged buffer and words for the evidence, if a place moves with the padding sentinel of an integer input.

    The region is run eagerly twice after staging the failing case: as it is, and with every negative entry that the
    staging wrote into an integer input replaced by zero. What only allocation wrote are constants, offsets for instance.
    Damage is whatever the region changes of the symptom's buffer, if that is state or written unasked, and what it changes
    of other state outside the region that the case writes.
    """
    case = plan.replays[symptom.step or 0]
    whole = symptom.name if symptom.kind is Kind.SIDE_EFFECT or symptom.name in component.mutates else ""
    with backend.active():
        damage = []
        changed: list[str] = []
        rng = backend.rng_state()
        for replaced in (False, True):
            arm = Arm(component, backend)
            arm.rng = rng
            if arm.stage(case) is not None:
                return None
            if replaced:
                for name in _staged_sentinels(component, arm, case):
                    arm.buffers[name].clamp_(min=0)
                    changed.append(name)
            damage.append(_damage(component, arm, case, whole))
    if not changed:
        return None
    for name, mask in damage[0].items():
        if bool((mask & ~damage[1][name]).any()):
            return name, f"sentinel of {', '.join(changed)} replaced by 0: the damage in {name} moves"
    return None


def _damage(component: Component, arm: Arm, case: Case, whole: str) -> dict[str, torch.Tensor]:
    """By buffer, the elements that the region changes: of ``whole`` all, of other state what the case does not write."""
    held = arm.on_device()
    watched = {each: held[each] for each in dict.fromkeys((whole, *component.mutates)) if each in held}
    regions = arm.written(case)
    spilled = {each: clone(held[each]) for each in component.scratch if each in held}
    before = snapshot(watched)
    arm.with_rng(arm.run)
    # Scratch may be a part of the state, as the page is that takes the writes of padding rows.
    for each, tensor in spilled.items():
        held[each].copy_(tensor)
    masks = {}
    for each, tensor in watched.items():
        mask = differs(before[each], tensor)
        if each != whole:
            inside = region_mask(tensor, regions.get(each))
            mask = mask & ~inside if inside is not None else torch.zeros_like(mask)
        masks[each] = mask.cpu()
    return masks


def _staged_sentinels(component: Component, arm: Arm, case: Case) -> list[str]:
    """Integer inputs with negative entries that come back when the case, which has been staged, is staged over poison."""
    held = {
        name: clone(tensor)
        for name in _inputs(component, arm)
        if not (tensor := arm.buffers[name]).is_floating_point()
        and tensor.dtype is not torch.bool
        and bool((tensor < 0).any())
    }
    for name in held:
        poison(arm.buffers[name])
    arm.stage(case)
    staged = []
    for name, before in held.items():
        if bool(((before < 0) & ~differs(before, arm.buffers[name])).any()):
            staged.append(name)
        arm.buffers[name].copy_(before)
    return staged
