"""The parts of the speculative loop, and the whole step, as components that graphcheck verifies.

Each is captured for a bucket and several draft lengths, whose graphs share a pool, and compared with the exact batch run
eagerly. Everything that no request owns is poisoned: stale slots, unused pages, the rows behind the batch.
"""

from __future__ import annotations

from eagle3.component.accepting import Accept
from eagle3.component.drafting import Draft, Loop
from eagle3.component.overlapping import Overlap
from eagle3.component.stepping import Step
from graphcheck import Component

COMPONENTS: dict[str, type[Component]] = {
    "accept": Accept,
    "draft": Draft,
    "overlap": Overlap,
    "loop": Loop,
    "step": Step,
}
