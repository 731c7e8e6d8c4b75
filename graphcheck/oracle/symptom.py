"""Symptoms: what one run of a plan shows, before anybody has asked for the cause."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from graphcheck.finding import Finding, RungStatus, Severity
from graphcheck.report import Counts


class Kind(str, enum.Enum):
    """What sort of evidence a symptom is. The first group names its cause by itself."""

    REFUSAL = "refusal"  # an operation that a capturing stream refuses
    RECORD = "record"  # seen while recording: work outside the capture, memory born in it
    LEDGER = "ledger"  # an address that moved or died
    ALLOCATION = "allocation"  # more memory than declared
    RESTORE = "restore"  # `restores` did not hold
    SHAPE = "shape"  # the eager answer is larger than what was captured

    CRASH = "crash"  # a replay raised
    DETERMINISM = "determinism"
    EAGER = "eager"
    OBSERVE = "observe"  # the consumer's view differs
    HISTORY = "history"  # the eager answer depends on earlier cases
    REFERENCE = "reference"
    SIDE_EFFECT = "side_effect"
    UNDECLARED = "undeclared"
    POISON = "poison"
    STATE = "state"  # Python state differs between the arms


DIRECT = frozenset({Kind.REFUSAL, Kind.RECORD, Kind.LEDGER, Kind.ALLOCATION, Kind.RESTORE, Kind.SHAPE})

RUNG_OF = {
    Kind.DETERMINISM: "determinism",
    Kind.EAGER: "eager",
    Kind.OBSERVE: "eager",
    Kind.HISTORY: "eager",
    Kind.CRASH: "eager",
    Kind.SHAPE: "eager",
    Kind.REFUSAL: "eager",
    Kind.STATE: "eager",
    Kind.REFERENCE: "reference",
    Kind.SIDE_EFFECT: "side_effects",
    Kind.UNDECLARED: "side_effects",
    Kind.RESTORE: "side_effects",
    Kind.POISON: "vacuity",
}


@dataclass(frozen=True)
class Symptom:
    """One piece of evidence.

    Args:
        kind: what sort.
        finding: what would be reported if no cause were found.
        step: number of the replay it showed at; None before the first.
        name: output or buffer concerned.
    """

    kind: Kind
    finding: Finding
    step: int | None = None
    name: str = ""


@dataclass
class Outcome:
    """What one run of a plan amounts to.

    Args:
        symptoms: everything that went wrong, in order.
        notes: findings that are no errors.
        rungs: rungs that were exercised.
        counts: how much was done.
        drifted: names of state that warm-up or capture changed and nobody put back.
        refusals: the component's own words for the cases it refused.
        host_state: names of plain Python state that run() changed while it was captured.
        context: what of the ambient context was another at a replay than at the capture, in words.
        rng_apart: the first replay after which the generators of the two arms differ.
        reissued: what the consumer holds in memory that the graph writes and that is no output.
        overlaps: which graph of the pool writes where another keeps or reads something, in words.
    """

    symptoms: list[Symptom] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    rungs: set[str] = field(default_factory=set)
    counts: Counts = field(default_factory=Counts)
    drifted: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    host_state: tuple[str, ...] = ()
    context: list[str] = field(default_factory=list)
    rng_apart: int | None = None
    reissued: list[str] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)

    @property
    def errors(self) -> list[Symptom]:
        """The symptoms that are errors."""
        return [symptom for symptom in self.symptoms if symptom.finding.severity is Severity.ERROR]

    @property
    def failed(self) -> bool:
        return bool(self.errors)

    @property
    def signature(self) -> frozenset[tuple[str, str]]:
        """What shrinking must preserve: kind and code of the errors."""
        return frozenset((symptom.kind.value, symptom.finding.code) for symptom in self.errors)

    def of(self, *kinds: Kind) -> list[Symptom]:
        """The symptoms of some kinds."""
        return [symptom for symptom in self.symptoms if symptom.kind in kinds]

    def statuses(self, absent: frozenset[str]) -> dict[str, RungStatus]:
        """The status of each rung that this outcome can speak of."""
        statuses = dict.fromkeys(absent, RungStatus.ABSENT)
        statuses.update(dict.fromkeys(self.rungs, RungStatus.PASSED))
        for symptom in self.errors:
            if symptom.kind in RUNG_OF:
                statuses[RUNG_OF[symptom.kind]] = RungStatus.FAILED
        return statuses
