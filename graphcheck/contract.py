"""`@capture_safe` and `refuse_while_capturing`: what captured functions carry and ask, without importing torch."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from graphcheck.errors import CaptureRefused
from graphcheck.finding import user_location

F = TypeVar("F", bound=Callable[..., Any])

ATTRIBUTE = "__graphcheck_contract__"
ROLES = ("dynamic", "static", "out", "workspace")

_CODE = re.compile(r"GC\d{3}")


@dataclass(frozen=True)
class Range:
    """What an argument's values may be, both ends included.

    Args:
        low: the smallest.
        high: the largest.

    Raises:
        ValueError: the range is empty, or an end is no number.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        for end in (self.low, self.high):
            if isinstance(end, bool) or not isinstance(end, (int, float)) or end != end:
                raise ValueError(f"Range({self.low!r}, {self.high!r}): expected two numbers, low and high")
        if self.low > self.high:
            raise ValueError(f"Range({self.low!r}, {self.high!r}) is empty; write Range({self.high!r}, {self.low!r})")

    def __contains__(self, value: object) -> bool:
        return isinstance(value, (int, float)) and self.low <= value <= self.high


Names = Iterable[str] | Mapping[str, Range | tuple[float, float] | None]


@dataclass(frozen=True)
class Contract:
    """What a captured function promises about its arguments.

    Args:
        dynamic: arguments whose contents change between replays; read on the device only.
        static: arguments frozen at capture.
        out: arguments that the function writes.
        workspace: scratch arguments, sized before capture.
        ranges: what the values of an argument may be, by its name.
        allow: codes that are no finding here, each with its reason.
    """

    dynamic: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    out: tuple[str, ...] = ()
    workspace: tuple[str, ...] = ()
    ranges: Mapping[str, Range] = field(default_factory=dict, hash=False)
    allow: Mapping[str, str] = field(default_factory=dict, hash=False)

    def role(self, name: str) -> str:
        """The member that names an argument; empty if none does."""
        return next((role for role in ROLES if name in getattr(self, role)), "")


def capture_safe(
    *,
    dynamic: Names = (),
    static: Names = (),
    out: Names = (),
    workspace: Names = (),
    allow: Mapping[str, str] | None = None,
) -> Callable[[F], F]:
    """Attach a contract to a function that is captured elsewhere; the same function object comes back.

    Each member is a tuple of argument names, or maps names to the range of their values: ``(low, high)``, a `Range`, or
    None for any::

        @capture_safe(dynamic={"kv_lens": (0, 4096), "q": None}, static=("scale",), out=("out",),
                      allow={"GC505": "one scalar per step, reused by the pool"})

    Args:
        dynamic: arguments whose contents change between replays; read on the device only.
        static: arguments frozen at capture.
        out: arguments that the function writes.
        workspace: scratch arguments, sized before capture.
        allow: codes that are no finding in this function, each with its reason.

    Raises:
        TypeError: a member is no collection of names, a name stands in two members, or is no argument of the function.
        ValueError: a range is empty, or an allowance has no reason.
    """
    members: dict[str, tuple[str, ...]] = {}
    ranges: dict[str, Range] = {}
    owner: dict[str, str] = {}
    for member, given in zip(ROLES, (dynamic, static, out, workspace), strict=True):
        members[member] = _names(member, given, ranges)
        for name in members[member]:
            if name in owner:
                raise TypeError(f"capture_safe: {name!r} stands in both {owner[name]} and {member}; keep one")
            owner[name] = member
    contract = Contract(**members, ranges=ranges, allow=_allowances(allow))

    def attach(function: F) -> F:
        _check_signature(function, owner)
        setattr(function, ATTRIBUTE, contract)
        return function

    return attach


def _names(member: str, given: Any, ranges: dict[str, Range]) -> tuple[str, ...]:
    """The names of a member; ranges that stand beside them go into ``ranges``."""
    if isinstance(given, Mapping):
        for name, limits in given.items():
            if limits is not None and isinstance(name, str):
                ranges[name] = _range(member, name, limits)
        names = tuple(given)
    elif isinstance(given, (tuple, list)):
        names = tuple(given)
    else:
        names = (None,)
    if not all(isinstance(name, str) for name in names):
        raise TypeError(
            f"capture_safe({member}={given!r}): expected a tuple of argument names, or a mapping of names to ranges"
        )
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise TypeError(f"capture_safe({member}={given!r}) names {repeated[0]!r} twice; keep one")
    return names


def _range(member: str, name: str, limits: Any) -> Range:
    if isinstance(limits, Range):
        return limits
    if not isinstance(limits, (tuple, list)) or len(limits) != 2:
        raise TypeError(f"capture_safe({member}): the range of {name!r} is {limits!r}; expected (low, high) or None")
    try:
        return Range(*limits)
    except ValueError as error:
        raise ValueError(f"capture_safe({member}): {name!r}: {error}") from None


def _allowances(allow: Any) -> dict[str, str]:
    if allow is None:
        return {}
    if not isinstance(allow, Mapping):
        raise TypeError(f"capture_safe(allow={allow!r}): expected a mapping of codes to reasons")
    for code, reason in allow.items():
        if not isinstance(code, str) or _CODE.fullmatch(code) is None:
            raise ValueError(f"capture_safe(allow): {code!r} is no code; write one such as GC505")
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(f"capture_safe(allow): {code} has no reason (GC992); say why it is harmless here")
    return dict(allow)


def _check_signature(function: Any, owner: Mapping[str, str]) -> None:
    """Raise if the contract names something that the function does not take."""
    if not callable(function):
        kind = type(function).__name__
        raise TypeError(f"capture_safe decorates functions, got {kind}; put it below @staticmethod and @classmethod")
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    unknown = [name for name in owner if name not in parameters]
    if unknown:
        title = getattr(function, "__qualname__", repr(function))
        raise TypeError(
            f"capture_safe({owner[unknown[0]]}): {title} takes no argument {unknown[0]!r} (GC993); "
            f"it takes {', '.join(parameters) or 'none'}"
        )


def contract_of(function: Callable[..., Any]) -> Contract | None:
    """The contract attached to ``function`` by `capture_safe`, or None."""
    found = getattr(function, ATTRIBUTE, None)
    return found if isinstance(found, Contract) else None


def refuse_while_capturing(what: str) -> None:
    """Raise if the current stream is capturing, on either backend; otherwise do nothing.

    Call it where state is built lazily: a build inside a capture would leave its memory in the graph's pool.

    Args:
        what: the thing about to be built, for instance ``"decode state"``.

    Raises:
        CaptureRefused: GC405, with the caller's line.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_current_stream_capturing():
        return
    raise CaptureRefused(
        "GC405",
        f"{what} would be built while a stream is capturing",
        "build it before the capture (its memory would belong to the graph's pool)",
        user_location(sys._getframe(1)),
    )
