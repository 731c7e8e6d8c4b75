"""Acceptance rate and acceptance length, from the counts of verify steps, on the host."""

from __future__ import annotations

from collections.abc import Iterable

from eagle3.errors import ShapeMismatch


class Acceptance:
    """What verify steps kept, and the rates that follow.

    One verify step of one request is one sample: its count holds the tokens kept, the bonus among them. Rows of dummy
    requests have a count of 0 and are no samples. Nothing is windowed: all steps count.

    Attributes:
        steps: samples.
        drafted: drafts that were verified.
        reached: samples that had a draft at position i, by i.
        asked: those of them that kept all drafts before position i, by i.
        kept: those of them that kept the draft at position i too, by i.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.drafted = 0
        self.reached: list[int] = []
        self.asked: list[int] = []
        self.kept: list[int] = []

    def add(self, counts: Iterable[int], draft_len: int) -> None:
        """The counts of one batch are among the samples.

        Args:
            counts: tokens kept of each row, 1..1+L; 0 for padding rows.
            draft_len: L of this step.

        Raises:
            ShapeMismatch: a count is out of range; nothing is counted.
        """
        counts = [int(count) for count in counts]
        wrong = [f"row {b}: {count}" for b, count in enumerate(counts) if not 0 <= count <= 1 + draft_len]
        if wrong:
            raise ShapeMismatch(f"counts outside 0..{1 + draft_len} ({', '.join(wrong)}); they include the bonus token")
        more = [0] * (draft_len - len(self.reached))
        for by_position in (self.reached, self.asked, self.kept):
            by_position += more
        for count in counts:
            if count == 0:
                continue
            self.steps += 1
            self.drafted += draft_len
            for position in range(draft_len):
                self.reached[position] += 1
                self.asked[position] += position < count
                self.kept[position] += position < count - 1

    @property
    def accepted(self) -> int:
        """Drafts that were kept."""
        return sum(self.kept)

    @property
    def rate(self) -> float:
        """Kept drafts over verified drafts (AR); with one L, (AL - 1) / L."""
        return _ratio(self.accepted, self.drafted)

    @property
    def length(self) -> float:
        """Tokens per verify step (AL), the bonus among them, 1..1+L."""
        return 1 + _ratio(self.accepted, self.steps)

    @property
    def rates(self) -> list[float]:
        """Of the steps that had a draft at position i, the share that kept it and all before; they sum to AL - 1."""
        return [_ratio(kept, reached) for kept, reached in zip(self.kept, self.reached, strict=True)]

    @property
    def conditional_rates(self) -> list[float]:
        """Of the steps that kept all drafts before position i and had one there, the share that kept it."""
        return [_ratio(kept, asked) for kept, asked in zip(self.kept, self.asked, strict=True)]

    def __str__(self) -> str:
        rates = " ".join(f"{rate:.3f}" for rate in self.rates)
        return f"AR {self.rate:.3f}, AL {self.length:.3f} over {self.steps} steps, by position: {rates or '-'}"


def expected_length(rate: float, draft_len: int) -> float:
    """Tokens per step if each draft is kept with probability ``rate`` by itself: 1 + rate + ... + rate ** L."""
    return sum(rate**position for position in range(draft_len + 1))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
