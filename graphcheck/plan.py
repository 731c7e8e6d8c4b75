"""Plans: what the fuzzer generates and shrinks, and what a repro file holds."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
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
        neighbour: a graph of the harness's own shares the pool. It overwrites the pool's free blocks and the outputs
            that lie in the pool, and is replayed after each step.
        evict: after that many replays, graphs that no later replay needs are dropped, and others get their memory.
    """

    captures: tuple[Case, ...]
    replays: tuple[Case, ...]
    warmups: int = 2
    neighbour: bool = False
    evict: int | None = None

    def __post_init__(self) -> None:
        if not self.captures:
            raise PlanError("a plan needs at least one capture case")
        if self.warmups < 0:
            raise PlanError(f"a plan cannot have {self.warmups} warm-ups")
        if self.evict is not None and self.evict < 0:
            raise PlanError(f"a plan cannot evict after {self.evict} replays")

    @property
    def has_pool_options(self) -> bool:
        """Whether it asks for a neighbour or an eviction, which not every backend carries out."""
        return self.neighbour or self.evict is not None

    def simpler(self) -> Iterator[Plan]:
        """Plans without an option, with one replay or capture dropped, fewer warm-ups, or one case made simpler."""
        if self.neighbour:
            yield replace(self, neighbour=False)
        if self.evict is not None:
            yield replace(self, evict=None)
        for kept in (1, 2):
            if len(self.replays) > kept + 1:
                yield self._without(range(len(self.replays) - kept))
        for index in reversed(range(len(self.replays))):
            if len(self.replays) > 1:
                yield self._without((index,))
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

    def _without(self, dropped: Collection[int]) -> Plan:
        """The plan without some replays; graphs are evicted between the same two of those that are left."""
        replays = tuple(case for index, case in enumerate(self.replays) if index not in dropped)
        evict = None if self.evict is None else self.evict - sum(index < self.evict for index in dropped)
        return replace(self, replays=replays, evict=evict)

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON values; options that are off are left out, as in files that are older than they."""
        data: dict[str, Any] = {
            "captures": [case.to_json() for case in self.captures],
            "warmups": self.warmups,
            "replays": [case.to_json() for case in self.replays],
        }
        if self.neighbour:
            data["neighbour"] = True
        if self.evict is not None:
            data["evict"] = self.evict
        return data

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
        neighbour, evict = data.get("neighbour", False), data.get("evict")
        if not isinstance(neighbour, bool):
            raise MalformedFile(f"neighbour of a plan must be true or false, got {neighbour!r}")
        if isinstance(evict, bool) or not isinstance(evict, int | None):
            raise MalformedFile(f"evict of a plan must be a whole number or null, got {evict!r}")
        try:
            return Plan(
                captures=tuple(Case.from_json(case) for case in data["captures"]),
                replays=tuple(Case.from_json(case) for case in data["replays"]),
                warmups=data["warmups"],
                neighbour=neighbour,
                evict=evict,
            )
        except PlanError as error:
            raise MalformedFile(str(error)) from error

    def through_json(self) -> Plan:
        """The plan as a repro file would give it back."""
        return replace(
            self,
            captures=tuple(case.through_json() for case in self.captures),
            replays=tuple(case.through_json() for case in self.replays),
        )

    @property
    def digest(self) -> str:
        """A canonical text of the plan; equal plans have equal digests."""
        return json.dumps(self.to_json(), sort_keys=True)
