"""Each component of msa, through the fixture that users have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from graphcheck.finding import Severity
from msa.component import COMPONENTS

EXAMPLES = {"decode.m3": 2, "layers": 2, "decode.fp8": 3}


@pytest.mark.parametrize("name", sorted(COMPONENTS))
def test_captured_component_equals_the_eager_api(name: str, graphcheck: Callable[..., Any]) -> None:
    """Expected: every rung passes and nothing is said above a note."""
    report = graphcheck(COMPONENTS[name], backend="emulator", examples=EXAMPLES.get(name, 12), seed=1)
    assert [finding for finding in report.findings if finding.severity is not Severity.NOTE] == []
