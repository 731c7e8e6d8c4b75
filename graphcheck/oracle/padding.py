"""Padding rows that reach live ones: the mismatch is gone once the rows behind the batch look like a live row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from graphcheck.component import Component
from graphcheck.finding import Finding
from graphcheck.oracle.arm import Arm
from graphcheck.oracle.symptom import Kind

if TYPE_CHECKING:
    from graphcheck.oracle.attribution import Attribution

Rows = tuple[int, int]


def leaks(study: Attribution) -> Finding | None:
    """GC704 if eager runs a part of the bucket, and the mismatch is gone when padding rows repeat the first live row."""
    if study.symptom.kind is not Kind.EAGER or type(study.component).eager is Component.eager:
        return None
    rows = _rows(study)
    if rows is None:
        return None
    from graphcheck.oracle.lockstep import Options

    if not study.gone("padding rows given the contents of the first row", Options(padding=rows)):
        return None
    live, bucket = rows
    return study.named(
        "GC704",
        f"live rows of {study.symptom.name} depend on what the rows behind the batch hold: {live} of {bucket} rows are live",
        "give padding rows neutral lengths and contents, or keep what spans rows (a scale, a maximum) to the live ones",
    )


def _rows(study: Attribution) -> Rows | None:
    """Rows of the exact batch and of the bucket, from what eager() and run() return; None if they are the same."""
    with study.backend.active():
        captured, eager = Arm(study.component, study.backend), Arm(study.component, study.backend)
        if captured.stage(study.case) is not None or eager.stage(study.case) is not None:
            return None
        whole, exact = captured.with_rng(captured.run), eager.with_rng(lambda: eager.eager(study.case))
        for name, tensor in exact.items():
            if name in whole and tensor.dim() and 0 < tensor.shape[0] < whole[name].shape[0]:
                return int(tensor.shape[0]), int(whole[name].shape[0])
    return None


def repeat_first_row(tensors: Iterable[torch.Tensor], rows: Rows) -> None:
    """Rows behind the live ones hold what the first row holds, along the first dimension that has the bucket's extent."""
    live, bucket = rows
    for tensor in tensors:
        dim = next((dim for dim, extent in enumerate(tensor.shape) if extent == bucket), None)
        if dim is not None:
            tail = tensor.narrow(dim, live, bucket - live)
            tail.copy_(tensor.narrow(dim, 0, 1).expand_as(tail))
