"""Each component of the speculative loop, through the fixture that users have, and that its cases cover what they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from eagle3.component import COMPONENTS
from eagle3.component.models import BUCKET, VOCABULARY
from eagle3.component.speculation import Speculation
from graphcheck import Case
from graphcheck.backend.emulator import EmulatorBackend
from graphcheck.finding import Severity
from graphcheck.generation import generate

EXAMPLES = {"draft": 4, "loop": 4, "step": 2}


@pytest.mark.parametrize("name", sorted(COMPONENTS))
def test_captured_component_equals_the_exact_batch_run_eagerly(name: str, graphcheck: Callable[..., Any]) -> None:
    """Expected: every rung passes and nothing is said above a note."""
    report = graphcheck(COMPONENTS[name], backend="emulator", examples=EXAMPLES.get(name, 20), seed=1)
    assert [finding for finding in report.findings if finding.severity is not Severity.NOTE] == []


def test_cases_cover_every_count_batches_below_the_bucket_and_page_ends() -> None:
    """Expected: for three drafts each count 1..4, each batch size, and lengths on both sides of a page's end."""
    component = COMPONENTS["step"]()
    assert isinstance(component, Speculation)
    counts, sizes, ends = set(), set(), set()

    def look(drawn: Case) -> None:
        if drawn.variant == "l3":
            counts.update(component.kept(drawn))
        sizes.add(drawn.size)
        ends.update((past + 4) % 16 for past in component.past(drawn))

    generate(component.cases(), look, examples=120, seeded=1)
    assert counts == {1, 2, 3, 4} and sizes == set(range(1, BUCKET + 1))
    assert {15, 0, 1} <= ends


def test_drafts_are_kept_as_often_as_the_case_says_whatever_the_caches_hold() -> None:
    """The step's target names the successor of each token. Expected: the counts of the case, for all contents."""
    component = COMPONENTS["step"]()
    backend = EmulatorBackend()
    seen: list[tuple[list[int], list[int]]] = []
    with backend.active():
        buffers = component.allocate(torch.device("cuda"))

        def run(drawn: Case) -> None:
            component.stage(buffers, drawn)
            outputs = component.run(buffers)
            seen.append((outputs["count"].tolist()[: drawn.size], component.kept(drawn)))
            told = outputs["tokens"][: drawn.size].cpu()
            inputs = component.tokens(drawn)[: drawn.size]
            assert torch.equal(told, (inputs + 1) % VOCABULARY)

        generate(component.cases(), run, examples=12, seeded=2)
    assert [got for got, _ in seen] == [wanted for _, wanted in seen]
