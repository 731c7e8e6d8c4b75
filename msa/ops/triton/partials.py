"""The workspace of split attention: allocated once for the largest step, never grown."""

from __future__ import annotations

import torch

from graphcheck.contract import refuse_while_capturing
from msa.errors import CapacityExceeded, ShapeMismatch


class Partials:
    """Room for the partial softmaxes of any attention of a driver, or of the drivers of all buckets in turn.

    Flat stores, viewed contiguously at the shape that a step needs: the kernels take no strides. Nothing in here
    lives from one kernel pair to the next.

    Args:
        rows: most query rows (T).
        heads: Hq.
        parts: most parts (S) of a row.
        dim: D.
        device: where it lives.

    Raises:
        CaptureRefused: the current stream is capturing.
    """

    def __init__(self, rows: int, heads: int, parts: int, dim: int, device: torch.device | str) -> None:
        refuse_while_capturing("workspace of split attention")
        self.heads = heads
        self.dim = dim
        self.capacity = rows * heads * parts
        self.peaks = torch.empty(self.capacity, dtype=torch.float32, device=device)
        self.norms = torch.empty(self.capacity, dtype=torch.float32, device=device)
        self.totals = torch.empty(self.capacity * dim, dtype=torch.float32, device=device)

    def cut(self, rows: int, parts: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Views for ``rows`` rows of ``parts`` parts: peaks and norms [T, Hq, S], totals [T, Hq, S, D]; fp32, device.

        Raises:
            CapacityExceeded: they do not fit. The workspace never grows: graphs hold its address.
        """
        count = rows * self.heads * parts
        if count > self.capacity:
            raise CapacityExceeded(
                f"{rows} rows of {self.heads} heads in {parts} parts are {count} partial softmaxes, the workspace holds "
                f"{self.capacity}; allocate it for the largest bucket before the first capture"
            )
        shape = (rows, self.heads, parts)
        return (
            self.peaks.narrow(0, 0, count).view(shape),
            self.norms.narrow(0, 0, count).view(shape),
            self.totals.narrow(0, 0, count * self.dim).view(*shape, self.dim),
        )


def check_partials(
    peaks: torch.Tensor, norms: torch.Tensor, totals: torch.Tensor, shape: tuple[int, int, int, int]
) -> None:
    """Pass if the workspace is ``shape`` [T, Hq, S, D].

    Raises:
        ShapeMismatch: it is not.
    """
    got = (tuple(peaks.shape), tuple(norms.shape), tuple(totals.shape))
    if got != (shape[:3], shape[:3], shape):
        raise ShapeMismatch(
            f"the workspace is {got}, expected peaks and norms {shape[:3]} and totals {shape}; "
            "cut it with the rows and parts of this call"
        )
