"""Plans: what the fuzzer generates and shrinks, and what a repro file holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from graphcheck.cases import Case
from graphcheck.errors import MalformedFile, PlanError


@dataclass(frozen=True)
class Plan:
    """Captures, warm-ups and replays of one component.

    Args:
        captures: one case for each graph to be captured before the first replay, in order; all graphs share a pool.
            A replay whose graph key none of them has is served by a graph captured at that key's last replay.
        replays: the cases to replay, in order.
        warmups: runs before each capture.
    """

    captures: tuple[Case, ...]
    replays: tuple[Case, ...]
    warmups: int = 2

    def __post_init__(self) -> None:
        if not self.captures:
            raise PlanError("a plan needs at least one capture case")
        if self.warmups < 0:
            raise PlanError(f"a plan cannot have {self.warmups} warm-ups")

    def simpler(self) -> Iterator[Plan]:
        """Plans with one replay or capture dropped, fewer warm-ups, or one case made simpler."""
        for kept in (1, 2):
            if len(self.replays) > kept + 1:
                yield replace(self, replays=self.replays[-kept:])
        for index in reversed(range(len(self.replays))):
            if len(self.replays) > 1:
                yield replace(self, replays=self.replays[:index] + self.replays[index + 1 :])
        for index in reversed(range(len(self.captures))):
            if len(self.captures) > 1:
                yield replace(self, captures=self.captures[:index] + self.captures[index + 1 :])
        for fewer in dict.fromkeys((0, self.warmups - 1)):
            if 0 <= fewer < self.warmups:
                yield replace(self, warmups=fewer)
        for index, case in enumerate(self.replays):
            for candidate in case.simpler():
                yield replace(self, replays=(*self.replays[:index], candidate, *self.replays[index + 1 :]))
        for index, case in enumerate(self.captures):
            for candidate in case.simpler():
                yield replace(self, captures=(*self.captures[:index], candidate, *self.captures[index + 1 :]))

    def to_json(self) -> dict[str, Any]:
        return {
            "captures": [case.to_json() for case in self.captures],
            "warmups": self.warmups,
            "replays": [case.to_json() for case in self.replays],
        }

    @staticmethod
    def from_json(data: Any) -> Plan:
        """The plan that `to_json` described.

        Raises:
            MalformedFile: it is no such description.
        """
        if not isinstance(data, Mapping):
            raise MalformedFile(f"a plan must be an object, got {type(data).__name__}")
        missing = [key for key in ("captures", "warmups", "replays") if key not in data]
        if missing:
            raise MalformedFile(f"the plan lacks {', '.join(missing)}")
        if not all(isinstance(data[key], list) for key in ("captures", "replays")):
            raise MalformedFile("captures and replays of a plan must be lists of cases")
        if not isinstance(data["warmups"], int):
            raise MalformedFile(f"warmups of a plan must be a whole number, got {data['warmups']!r}")
        try:
            return Plan(
                captures=tuple(Case.from_json(case) for case in data["captures"]),
                replays=tuple(Case.from_json(case) for case in data["replays"]),
                warmups=data["warmups"],
            )
        except PlanError as error:
            raise MalformedFile(str(error)) from error

    def through_json(self) -> Plan:
        """The plan as a repro file would give it back."""
        return Plan(
            captures=tuple(case.through_json() for case in self.captures),
            replays=tuple(case.through_json() for case in self.replays),
            warmups=self.warmups,
        )

    @property
    def digest(self) -> str:
        """A canonical text of the plan; equal plans have equal digests."""
        return json.dumps(self.to_json(), sort_keys=True)
