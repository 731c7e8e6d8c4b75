"""One step of the lockstep: poison, stage, snapshot, run, observe, compare; in both arms and in this order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from graphcheck.cases import Case
from graphcheck.compare import Comparator, Mismatch, region_mask
from graphcheck.component import Component
from graphcheck.errors import ContractError, ReplayFailed
from graphcheck.finding import Finding, exception_location
from graphcheck.oracle import padding
from graphcheck.oracle.arm import Arm, Snapshot, clone, poison_all, put_back, snapshot, storage_key
from graphcheck.oracle.capturing import Graph, mismatch_finding, saved_undeclared
from graphcheck.oracle.numeric import outside_tolerance
from graphcheck.oracle.symptom import Kind, Outcome, Symptom
from graphcheck.poison import poison, poisoned, zero_where
from graphcheck.watch import context, host_state

if TYPE_CHECKING:
    from graphcheck.oracle.lockstep import Options


_STALE = "refresh every static input in stage, tails included, and keep state in mutates only"

# Provisional code, message and advice of each kind of mismatch, before anybody has asked for the cause.
MESSAGES = {
    Kind.EAGER: ("GC964", "{name} of the replay differs from the eager run", "see the interventions below"),
    Kind.OBSERVE: (
        "GC964",
        "what the consumer sees of {name} differs from the eager run",
        "copy outputs that you keep",
    ),
    Kind.HISTORY: ("GC964", "{name} depends on what earlier cases left in the buffers", _STALE),
    Kind.DETERMINISM: (
        "GC960",
        "{name} of two replays from the same state differs",
        "look for atomics, races between streams, or a generator that is not registered",
    ),
    Kind.REFERENCE: ("GC961", "{name} of the eager run is wrong against the reference", "fix the computation itself"),
    Kind.SIDE_EFFECT: (
        "GC962",
        "the replay changes {name} outside what it declares",
        "write only what written() names, or declare the buffer in mutates or scratch",
    ),
    Kind.POISON: (
        "GC963",
        "{name} still holds the poison written before the replay",
        "write the whole region that written() names, or narrow written()",
    ),
}


class Step:
    """One replay of ``graph`` on arm A (``captured``) against one eager run on arm B (``eager``)."""

    def __init__(
        self,
        component: Component,
        captured: Arm,
        eager: Arm,
        graph: Graph,
        case: Case,
        number: int,
        outcome: Outcome,
        comparator: Comparator,
        options: Options,
    ) -> None:
        self.unallocated = component
        self.captured = captured
        self.eager = eager
        self.graph = graph
        self.case = case
        self.number = number
        self.outcome = outcome
        self.comparator = comparator
        self.options = options
        self.component = captured.component
        self.output_buffers = self._output_buffers()

    def stage(self) -> bool:
        """Poison and stage both arms; False if the component refuses the case."""
        for arm in (self.captured, self.eager):
            buffers = arm.on_device()
            poison_all(buffers[name] for name in (*self.output_buffers, *self.component.scratch) if name in buffers)
        self._poison_pool_outputs()
        self._follow_host_state()
        refusals = []
        for arm, other in ((self.captured, self.eager), (self.eager, self.captured)):
            arm.enter(other)
            refusals.append(arm.stage(self.case))
        if refusals != [None, None]:
            self.outcome.counts.refused += 1
            self.outcome.refusals.append(next(words for words in refusals if words is not None))
            return False
        if self.options.refill:
            self._refill()
        if self.options.padding is not None:
            state = {*self.component.mutates, *self.component.scratch, *self.output_buffers}
            inputs = [tensor for name, tensor in self.captured.on_device().items() if name not in state]
            padding.repeat_first_row(inputs, self.options.padding)
        return True

    def replay(self, first: bool) -> None:
        """Run both arms and compare; the first replay of a plan is also repeated and checked for determinism."""
        self.captured.enter(self.eager)
        for objection in self.graph.recording.objections(self.captured.names()):
            self._add(Kind.LEDGER, objection)
        if self.options.immediate:
            changes = context.changes(self.graph.context, self.captured.context)
            self.outcome.context += [change for change in changes if change not in self.outcome.context]
        if self.options.shared_rng:
            self.captured.rng = self.eager.rng
        self.rng_before = self.eager.rng
        before = snapshot(self.captured.on_device())
        hidden = saved_undeclared(self.graph)
        self.before_eager = {name: clone(tensor) for name, tensor in self.eager.buffers.items()}
        regions = self.eager.written(self.case)
        try:
            self._run_captured()
            if first and "determinism" in self.options.rungs and not self.options.region_eagerly:
                self._repeat(before, hidden)
        except ReplayFailed as error:
            self._add(Kind.CRASH, self._crash(error))
            return
        self.outcome.counts.replays += 1
        self.eager.enter(self.captured)
        outputs = self.eager.with_rng(lambda: self.eager.eager(self.case))
        # Copied: staging a later case that is then refused poisons the buffers that outputs live in.
        self.expected_outputs = {name: clone(tensor) for name, tensor in outputs.items()}
        self._follow_host_state()
        self.captured.enter(self.eager)
        seen = self.captured.observe(self.graph.recording.outputs)
        self.eager.enter(self.captured)
        expected_seen = self.eager.observe(outputs)
        if self.outcome.rng_apart is None and not torch.equal(self.captured.rng, self.eager.rng):
            self.outcome.rng_apart = self.number
        self._compare_arms(outputs, regions)
        self._compare_observed(expected_seen, seen)
        if "side_effects" in self.options.rungs:
            self._compare_untouched(before, regions)
        if "vacuity" in self.options.rungs:
            self._look_for_poison(regions)
        if first and "reference" in self.options.rungs:
            self._compare_reference(outputs, regions)

    def compare_history(self) -> None:
        """A fresh arm that never saw an earlier case must give arm B's answer.

        State lives in ``mutates`` and nowhere else, so a difference means that the answer depends on what earlier
        cases left behind in a buffer that was not refreshed.
        """
        fresh = Arm(self.unallocated, self.eager.backend)
        fresh.rng = self.rng_before
        buffers = fresh.on_device()
        poison_all(buffers[name] for name in (*self.output_buffers, *self.component.scratch) if name in buffers)
        # Arm B holds poison where nothing was ever written; other bits there must not matter.
        never = {*self.component.mutates, *self.component.scratch, *self.output_buffers}
        for name, tensor in buffers.items():
            if name not in never:
                zero_where(tensor, poisoned(tensor))
        if fresh.stage(self.case) is not None:
            return
        put_back(dict(fresh.buffers.items()), self.before_eager, self.component.mutates)
        regions = fresh.written(self.case)
        outputs = fresh.with_rng(lambda: fresh.eager(self.case))
        for name, expected in outputs.items():
            got = self.expected_outputs[name]
            if got.shape == expected.shape:
                self.comparator.check(
                    name, expected, got, region_mask(expected, regions.get(name)), self._on(Kind.HISTORY, name)
                )

    def _run_captured(self) -> None:
        if self.options.region_eagerly:
            outputs = self.captured.with_rng(self.captured.run)
            for name, tensor in self.graph.recording.outputs.items():
                if name in outputs and storage_key(outputs[name]) != storage_key(tensor):
                    tensor.copy_(outputs[name])
        else:
            self.captured.with_rng(self.graph.recording.replay)

    def _repeat(self, before: Snapshot, hidden: Snapshot) -> None:
        """Put the state back, replay again, and compare with the first time."""
        self.outcome.rungs.add("determinism")
        watched = {name: self.captured.buffers[name] for name in self.component.mutates}
        watched.update(self.graph.recording.outputs)
        once = snapshot(watched)
        rng = self.captured.rng
        self.captured.rng = self.rng_before
        put_back(self.captured.on_device(), before)
        put_back(self.graph.undeclared, hidden)
        self._poison_pool_outputs()
        self._run_captured()
        if self.component.scratch:
            watched = {name: tensor for name, tensor in watched.items() if name not in self.component.scratch}
        for name, tensor in watched.items():
            kept = self._kept(name) if name in self.component.mutates else None
            self.comparator.check(name, once[name], tensor, kept, self._on(Kind.DETERMINISM, name))
        self.captured.rng = rng

    def _compare_arms(self, outputs: Mapping[str, torch.Tensor], regions: Mapping[str, Any]) -> None:
        self.outcome.rungs.add("eager")
        captured = self.graph.recording.outputs
        if set(outputs) != set(captured):
            raise ContractError(
                f"{self.component.title}: run returned {sorted(captured)} and eager returned {sorted(outputs)}; "
                "both must return the same names"
            )
        for name, expected in outputs.items():
            if _outgrown(expected, captured[name]):
                self._add(Kind.SHAPE, self._too_large(name, expected, captured[name]), name)
                continue
            got, mask = _aligned(name, expected, captured[name], regions.get(name))
            self.comparator.check(name, expected, got, mask, self._on(Kind.EAGER, name))
        for name in self.component.mutates:
            expected, got = self.eager.buffers[name], self.captured.buffers[name]
            mask = _both(region_mask(expected, regions.get(name)), self._kept(name))
            self.comparator.check(name, expected, got, mask, self._on(Kind.EAGER, name))

    def _compare_observed(self, expected: Snapshot, got: Snapshot) -> None:
        if set(expected) != set(got):
            names = sorted(set(expected) ^ set(got))
            raise ContractError(f"{self.component.title}.observe returns {names} in one arm only; return both or none")
        for name, tensor in expected.items():
            self.comparator.check(name, tensor, got[name], None, self._on(Kind.OBSERVE, name))
        if self.graph.undeclared:
            written = {storage_key(tensor) for tensor in self.graph.undeclared.values()}
            self.outcome.reissued += [name for name, key in self.captured.observed.items() if key in written]

    def _compare_untouched(self, before: Snapshot, regions: Mapping[str, Any]) -> None:
        """Every byte outside ``written``, ``mutates`` and ``scratch`` is what it was before the run."""
        self.outcome.rungs.add("side_effects")
        views = self._output_views(regions)
        for name, tensor in self.captured.on_device().items():
            if name in self.component.scratch or tensor.shape != before[name].shape:
                continue
            touched: torch.Tensor | None = None
            if name in self.component.mutates:
                if regions.get(name) is None:
                    continue
                touched = region_mask(tensor, regions[name])
            elif name in self.output_buffers:
                touched = views[name]
            outside = _both(None if touched is None else ~touched, self._kept(name))
            self.comparator.check(name, before[name], tensor, outside, self._on(Kind.SIDE_EFFECT, name))
        if self.options.immediate:
            for finding in self.captured.backend.damaged_guards():
                self._add(Kind.SIDE_EFFECT, finding)

    def _look_for_poison(self, regions: Mapping[str, Any]) -> None:
        self.outcome.rungs.add("vacuity")
        for name, tensor in self.graph.recording.outputs.items():
            if self._shares_mutated(tensor):
                continue
            left, mask = poisoned(tensor), region_mask(tensor, regions.get(name))
            left = left if mask is None else left & mask
            self.comparator.flag(name, left, tensor, tensor, self._on(Kind.POISON, name))

    def _compare_reference(self, outputs: Mapping[str, torch.Tensor], regions: Mapping[str, Any]) -> None:
        if type(self.component).reference is Component.reference:
            return
        before = {name: tensor.cpu() for name, tensor in self.before_eager.items()}
        answers = {name: tensor.detach().cpu() for name, tensor in outputs.items()}
        right = self.eager.call("reference", self.eager.component.reference, before, self.case, answers)
        if right is None:
            return
        self.outcome.rungs.add("reference")
        for name, expected in right.items():
            tensor = outputs[name] if name in outputs else self.eager.buffers[name]
            mask = region_mask(tensor, regions.get(name))
            found = outside_tolerance(
                name, expected, tensor.detach().cpu(), None if mask is None else mask.cpu(), self.component.tolerance
            )
            if found is not None:
                self._on(Kind.REFERENCE, name)(found)

    def _output_buffers(self) -> tuple[str, ...]:
        """Names of the buffers that hold an output and are no state."""
        keys = {storage_key(tensor) for tensor in self.graph.recording.outputs.values()}
        return tuple(
            name
            for name, tensor in self.captured.on_device().items()
            if name not in self.component.mutates and storage_key(tensor) in keys
        )

    def _output_views(self, regions: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """For each output buffer, the part of it that the outputs write, as a mask of the buffer's shape."""
        views: dict[str, torch.Tensor] = {}
        for name in self.output_buffers:
            buffer = self.captured.buffers[name]
            touched = torch.zeros_like(buffer, dtype=torch.bool, memory_format=torch.preserve_format)
            for output, tensor in self.graph.recording.outputs.items():
                if storage_key(tensor) != storage_key(buffer):
                    continue
                if tensor.element_size() != buffer.element_size() or touched.stride() != buffer.stride():
                    touched.fill_(True)
                    continue
                offset = tensor.storage_offset() - buffer.storage_offset()
                part = touched.as_strided(tensor.shape, tensor.stride(), offset)
                mask = region_mask(tensor, regions.get(output))
                part.logical_or_(torch.ones_like(part) if mask is None else mask)
            views[name] = touched
        return views

    def _kept(self, name: str) -> torch.Tensor | None:
        """The part of a buffer that no scratch buffer overlaps, as a mask; None means all of it."""
        buffer, masks = self.captured.buffers[name], self.graph.kept
        place = (name, buffer.data_ptr())
        if place not in masks:
            masks[place] = self._outside_scratch(buffer)
        return masks[place]

    def _outside_scratch(self, buffer: torch.Tensor) -> torch.Tensor | None:
        kept: torch.Tensor | None = None
        for other in self.component.scratch:
            scratch = self.captured.buffers[other]
            if storage_key(scratch) != storage_key(buffer) or scratch.element_size() != buffer.element_size():
                continue
            offset = scratch.storage_offset() - buffer.storage_offset()
            if offset < 0 or offset + _extent(scratch) > _extent(buffer):
                continue
            if kept is None:
                kept = torch.ones_like(buffer, dtype=torch.bool, memory_format=torch.preserve_format)
            kept.as_strided(scratch.shape, scratch.stride(), offset).fill_(False)
        return kept

    def _poison_pool_outputs(self) -> None:
        """Poison the outputs that live in the graph's own pool."""
        held = {storage_key(tensor) for _, tensor in self.captured.buffers.items()}
        for tensor in self.graph.recording.outputs.values():
            if storage_key(tensor) not in held:
                poison(tensor)

    def _shares_mutated(self, tensor: torch.Tensor) -> bool:
        return storage_key(tensor) in {storage_key(self.captured.buffers[name]) for name in self.component.mutates}

    def _refill(self) -> None:
        """Give arm A's static inputs the contents of a fresh arm's staging."""
        fresh = Arm(self.unallocated, self.captured.backend)
        if fresh.stage(self.case) is None:
            keep = {*self.component.mutates, *self.component.scratch, *self.output_buffers}
            put_back(
                dict(self.captured.buffers.items()),
                {name: tensor for name, tensor in fresh.buffers.items() if name not in keep},
            )

    def _on(self, kind: Kind, name: str) -> Callable[[Mismatch], None]:
        def found(mismatch: Mismatch) -> None:
            code, message, advice = MESSAGES[kind]
            finding = mismatch_finding(code, message.format(name=name), mismatch, self.case, self.number, advice)
            self._add(kind, finding, name)

        return found

    def _add(self, kind: Kind, finding: Finding, name: str = "") -> None:
        self.outcome.symptoms.append(Symptom(kind, finding, self.number, name))

    def _follow_host_state(self) -> None:
        """Where asked for, bring the Python state that run() changes in arm A to where arm B's is."""
        if self.options.host_state:
            host_state.advance(self.captured.component, self.eager.component, self.graph.host_state)
            host_state.rebind(self.captured.component, self.graph.rebound)

    def _too_large(self, name: str, expected: torch.Tensor, got: torch.Tensor) -> Finding:
        return Finding(
            code="GC701",
            message=f"{name} has {list(expected.shape)} elements for this case and the graph was captured for "
            f"{list(got.shape)}: the rest is cut off",
            place=f"replay {self.number}, {name}",
            expected=str(list(expected.shape)),
            got=str(list(got.shape)),
            advice="refuse the case in stage, split it, or put the bucket in the graph key",
            evidence=(f"at {self.case}",),
        )

    def _crash(self, error: ReplayFailed) -> Finding:
        return Finding(
            code="GC964",
            message=f"the replay failed: {error}",
            where=exception_location(error.__cause__) if error.__cause__ is not None else None,
            place=f"replay {self.number}",
            expected="a replay that finishes",
            got=str(error),
            advice="check the indices and addresses that the failing operation reads",
            evidence=(f"at {self.case}",),
        )


def _outgrown(expected: torch.Tensor, got: torch.Tensor) -> bool:
    """Whether the eager output is longer in some dimension than the captured one."""
    return expected.dim() == got.dim() and any(
        whole < part for whole, part in zip(got.shape, expected.shape, strict=True)
    )


def _extent(tensor: torch.Tensor) -> int:
    """Elements from the tensor's first to its last one in memory."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _both(first: torch.Tensor | None, second: torch.Tensor | None) -> torch.Tensor | None:
    """Where both masks hold; None stands for everywhere."""
    if first is None or second is None:
        return first if second is None else second
    return first & second


def _aligned(
    name: str, expected: torch.Tensor, got: torch.Tensor, region: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The captured output cut to the eager one's shape (the exact batch of a bucket), and the mask inside it.

    Raises:
        ContractError: the two cannot be compared.
    """
    if got.dtype != expected.dtype or got.dim() != expected.dim():
        raise ContractError(
            f"output {name}: run gives {tuple(got.shape)} {got.dtype}, eager gives {tuple(expected.shape)} "
            f"{expected.dtype}; eager must return the same dtype and as many dimensions"
        )
    mask = region_mask(got, region)
    if got.shape == expected.shape:
        return got, mask
    cut = tuple(slice(0, extent) for extent in expected.shape)
    return got[cut], None if mask is None else mask[cut]
