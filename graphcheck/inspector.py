"""`inspect`: capture a component once on the GPU and take the graph apart."""

from __future__ import annotations

from typing import Any

from graphcheck.backend import resolve
from graphcheck.cases import Case
from graphcheck.component import Component
from graphcheck.errors import EnvironmentUnable, UsageError
from graphcheck.finding import Finding
from graphcheck.graph.inspection import Inspection
from graphcheck.oracle.arm import Arm
from graphcheck.oracle.capturing import capture
from graphcheck.oracle.symptom import Outcome


def inspect(component: Component, case: Case, *, backend: str = "auto", target: str = "") -> Inspection:
    """The nodes, argument words and memory of the graph that ``component`` gives at ``case``.

    Args:
        component: never allocated; it is copied.
        case: what it is captured at.
        backend: ``cuda``, or ``auto`` where there is a GPU: only a real graph has nodes.
        target: how to call the component.

    Raises:
        EnvironmentUnable: there is no GPU, or cuda-bindings is not installed.
        UsageError: the component refuses the case, or CUDA refuses the capture.
    """
    machine: Any = resolve(backend)
    if machine.name != "cuda":
        raise EnvironmentUnable(
            "inspect reads the nodes of a real graph and needs an NVIDIA GPU; use fuzz or check here"
        )
    outcome = Outcome()
    with machine.active():
        arm = Arm(component, machine)
        graph = capture(arm, case, component.warmup, machine.pool(), outcome)
        if graph is None:
            raise UsageError(f"{component.title} was not captured: {_why(outcome)}")
        recording: Any = graph.recording
        if not recording.nodes:
            raise EnvironmentUnable(
                "the graph's nodes cannot be read: it is empty, or cuda-bindings is missing "
                "(pip install 'torch-graphcheck[cuda]')"
            )
        found: list[Finding] = [symptom.finding for symptom in outcome.symptoms]
        inspection = Inspection(
            target or component.title, recording.nodes, recording.classed_words(), recording.host_buffers(), found
        )
        recording.close()
    return inspection


def _why(outcome: Outcome) -> str:
    if outcome.refusals:
        return f"it refuses the case ({outcome.refusals[-1]})"
    finding = outcome.symptoms[-1].finding
    return f"{finding.code}, {finding.message}" + (f" at {finding.where}" if finding.where is not None else "")
