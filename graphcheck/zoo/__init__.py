"""The zoo: planted defects with clean twins, which prove that each check can fail and can stay silent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from graphcheck.finding import Severity

if TYPE_CHECKING:
    from graphcheck.component import Component

FAMILIES = (
    "forbidden",
    "streams",
    "frozen",
    "host",
    "addresses",
    "pools",
    "warmup",
    "padding",
    "random",
    "oracle",
    "reports",
)
BUILT_IN = tuple(f"graphcheck.zoo.{family}" for family in FAMILIES)
PACKAGES = ("eagle3.zoo", "msa.zoo")


@dataclass(frozen=True)
class Entry:
    """One planted defect and its clean twin.

    Args:
        code: the cause that graphcheck must name first.
        name: short and unique, for instance ``"baked-width"``.
        planted: makes the component with the defect.
        clean: makes the twin without it.
        mechanism: one sentence.
        severity: of the finding that leads; only errors make the planted component fail.
        backends: the backends that can show it.
        reason: why not the others.
    """

    code: str
    name: str
    planted: Callable[[], Component]
    clean: Callable[[], Component]
    mechanism: str
    severity: Severity = Severity.ERROR
    backends: tuple[str, ...] = ("cuda", "emulator")
    reason: str = ""


def entries() -> list[Entry]:
    """Every entry of the generic zoo, of the packages beside it and of installed ones (group ``graphcheck.zoo``).

    Raises:
        ValueError: two entries have one name.
    """
    modules = [*BUILT_IN, *PACKAGES]
    modules += [point.value for point in entry_points(group="graphcheck.zoo") if point.value not in modules]
    found: list[Entry] = []
    for module in modules:
        found += import_module(module).ZOO
    names = [entry.name for entry in found]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ValueError(f"zoo entries share a name: {', '.join(doubled)}")
    return sorted(found, key=lambda entry: (entry.code, entry.name))
