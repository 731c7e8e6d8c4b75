"""`@capture_safe` and `refuse_while_capturing`: what captured functions carry and ask, without importing torch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from graphcheck.errors import CaptureRefused
from graphcheck.finding import user_location

F = TypeVar("F", bound=Callable[..., Any])

ATTRIBUTE = "__graphcheck_contract__"


@dataclass(frozen=True)
class Contract:
    """What a captured function promises about its arguments.

    Args:
        dynamic: arguments whose contents change between replays; read on the device only.
        static: arguments frozen at capture.
        out: arguments that the function writes.
        workspace: scratch arguments, sized before capture.
    """

    dynamic: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    out: tuple[str, ...] = ()
    workspace: tuple[str, ...] = ()


def capture_safe(
    *,
    dynamic: tuple[str, ...] = (),
    static: tuple[str, ...] = (),
    out: tuple[str, ...] = (),
    workspace: tuple[str, ...] = (),
) -> Callable[[F], F]:
    """Attach a contract to a function that is captured elsewhere; the same function object comes back.

    Raises:
        TypeError: a member is not a tuple of names, or a name stands in two members.
    """
    members = {"dynamic": dynamic, "static": static, "out": out, "workspace": workspace}
    owner: dict[str, str] = {}
    for member, names in members.items():
        if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"capture_safe({member}={names!r}): expected a tuple of argument names")
        for name in names:
            if name in owner:
                raise TypeError(f"capture_safe: {name!r} stands in both {owner[name]} and {member}; keep one")
            owner[name] = member
    contract = Contract(**members)

    def attach(function: F) -> F:
        setattr(function, ATTRIBUTE, contract)
        return function

    return attach


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
