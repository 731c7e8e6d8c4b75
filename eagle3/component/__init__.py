"""The parts of the speculative loop, and the whole step, as components that graphcheck verifies."""

from __future__ import annotations

from eagle3.component.stepping import Step
from graphcheck import Component

COMPONENTS: dict[str, type[Component]] = {"step": Step}
