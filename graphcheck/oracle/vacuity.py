"""The vacuity rung over a campaign: could the checks have failed at all?"""

from __future__ import annotations

import torch

from graphcheck.backend.protocol import Backend
from graphcheck.cases import Case
from graphcheck.compare import differs, region_mask
from graphcheck.component import Component
from graphcheck.finding import Finding, Severity
from graphcheck.oracle.arm import Arm, Snapshot, clone, poison_all
from graphcheck.poison import zero_where
from graphcheck.report import Counts

_TRIES = 12
# Fewer cases of a key may all have been refused by chance.
_PLANS_OF_A_KEY = 3


def refused_or_empty(counts: Counts, refusals: list[str]) -> Finding | None:
    """An error if nothing was replayed or over half of the cases were refused."""
    words = f'the last refusal says: "{refusals[-1]}"' if refusals else "no case was refused"
    if counts.replays == 0:
        return Finding(
            code="GC963",
            message="nothing was replayed, so nothing was checked",
            expected="at least one replay",
            got=f"{counts.refused} of {counts.cases} cases refused; {words}",
            advice="narrow cases() to what stage() accepts",
        )
    if 2 * counts.refused > counts.cases:
        return Finding(
            code="GC963",
            message=f"the component refused {counts.refused} of {counts.cases} cases, so most of cases() was not checked",
            expected="at most half of the cases refused",
            got=words,
            advice="narrow cases() to what stage() accepts",
        )
    return None


def never_replayed(counts: Counts) -> list[Finding]:
    """A warning for each graph key whose cases were drawn and whose graph never ran, where those of other keys did."""
    if len(counts.keys) < 2 or not counts.replays:
        return []
    return [
        Finding(
            code="GC608",
            message=f"no graph of key {key} was ever replayed: whatever serves its cases, it is no graph that was checked",
            severity=Severity.WARNING,
            expected=f"replays in some of the {each.plans} plans with cases of key {key}",
            got=f"{each.captures} captures and no replay; the component refused every case of it",
            advice="let stage() accept the cases of every key that key() gives, or leave those cases out of cases()",
        )
        for key, each in counts.keys.items()
        if each.plans >= _PLANS_OF_A_KEY and not each.replays
    ]


class Influence:
    """Which case fields have been seen to change an output, by swapping them between two cases of the campaign.

    Args:
        component: never allocated.
        backend: not active.
    """

    def __init__(self, component: Component, backend: Backend) -> None:
        self.component = component
        self.backend = backend

    def findings(self, cases: list[Case]) -> list[Finding]:
        """A warning for each field that changed no output although it was swapped, unless it is declared inert."""
        fields = {name for case in cases for name in case.fields}
        wanted = sorted(fields - set(self.component.inert))
        silent = [name for name in wanted if self._tried_in_vain(name, cases)]
        return [
            Finding(
                code="GC963",
                message=f"case field {name!r} changed no output in any of the swaps tried",
                severity=Severity.WARNING,
                expected="every field changes some output, or is declared in inert with a reason",
                got="the same bits whatever its value",
                advice=f"stage {name!r} into a buffer that run() reads, or declare it: inert = {{{name!r}: 'why'}}",
            )
            for name in silent
        ]

    def _tried_in_vain(self, name: str, cases: list[Case]) -> bool:
        tries = 0
        for first, second in _pairs(name, cases):
            swapped = first.replaced(**{name: second.fields[name]})
            change = self._changes(first, swapped)
            if change:
                return False
            tries += change is not None
            if tries >= _TRIES:
                break
        return tries > 0

    def _changes(self, first: Case, second: Case) -> bool | None:
        """Whether two cases give different bits in fresh arms; None if either is refused."""
        with self.backend.active():
            rng = self.backend.rng_state()
            answers = [self._answer(case, rng) for case in (first, second)]
            if answers[0] is None or answers[1] is None:
                return None
            for name, tensor in answers[0].items():
                other = answers[1].get(name)
                if other is None or other.shape != tensor.shape or bool(differs(tensor, other).any()):
                    return True
        return False

    def _answer(self, case: Case, rng: torch.Tensor) -> Snapshot | None:
        """Outputs, state and the consumer's view of a fresh eager arm, each cut to the region it writes.

        Both answers draw the same random numbers, so that these do not pass for the field's influence.
        """
        arm = Arm(self.component, self.backend)
        arm.rng = rng
        poison_all(arm.buffers[name] for name in self.component.scratch if name in arm.on_device())
        if arm.stage(case) is not None:
            return None
        regions = arm.written(case)
        outputs = arm.with_rng(lambda: arm.eager(case))
        answer = {f"output {name}": tensor for name, tensor in outputs.items()}
        answer.update({f"state {name}": arm.buffers[name] for name in self.component.mutates})
        cut: Snapshot = {}
        for label, tensor in answer.items():
            mask = region_mask(tensor, regions.get(label.split(" ", 1)[1]))
            copy = clone(tensor)
            if mask is not None:
                zero_where(copy, ~mask)
            cut[label] = copy
        cut.update(arm.observe(outputs))
        return cut


def _pairs(name: str, cases: list[Case]) -> list[tuple[Case, Case]]:
    """Pairs of cases that differ in a field, neighbours in the campaign first."""
    pairs = []
    for first, second in zip(cases, cases[1:], strict=False):
        if name in first.fields and name in second.fields and first.fields[name] != second.fields[name]:
            pairs.append((first, second))
    return pairs
