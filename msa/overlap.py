"""Overlap scheduling: lengths are staged as if every draft were accepted, and corrected when the truth is known."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from graphcheck.contract import capture_safe, refuse_while_capturing
from msa.driver import DecodeDriver
from msa.eager import EagerBatch
from msa.errors import BatchTooLarge
from msa.geometry import Geometry
from msa.paging import FlatTable


class OverlapLengths:
    """Optimistic lengths of a decode batch, and the hook that corrects them on the device.

    The host launches a step before it has read how many tokens the previous one kept, so it stages
    ``committed + 2 * Q``: Q tokens of the previous step, all kept, and Q of this one. The device knows the number kept.
    The staged lengths are never changed: the corrected ones are computed from them anew, so applying the hook twice
    gives the same bits as applying it once.

    Args:
        batch: B.
        qo_len: Q, query tokens of the previous step and of this one.
        device: where the buffers live.

    Attributes:
        staged: [B] int32, device, tokens: optimistic lengths. Input.
        accepted: [B] int32, device, tokens: what the previous step kept, 1..Q; Q for rows that it did not hold. Input.

    Raises:
        CaptureRefused: the current stream is capturing.
    """

    def __init__(self, batch: int, qo_len: int, device: torch.device | str) -> None:
        refuse_while_capturing("overlap state")
        self.batch = batch
        self.qo_len = qo_len
        self.staged = torch.zeros(batch, dtype=torch.int32, device=device)
        self.accepted = torch.full((batch,), qo_len, dtype=torch.int32, device=device)

    def stage(self, optimistic: Sequence[int]) -> None:
        """The optimistic lengths stand on the device, 0 behind them; in place, from the host.

        Raises:
            BatchTooLarge: more lengths than rows.
        """
        if len(optimistic) > self.batch:
            raise BatchTooLarge(f"{len(optimistic)} requests for {self.batch} rows; split the batch")
        values = torch.zeros(self.batch, dtype=torch.int32)
        values[: len(optimistic)] = torch.tensor(list(optimistic), dtype=torch.int32)
        self.staged.copy_(values)

    def correct(self, driver: DecodeDriver) -> None:
        """The driver's lengths are the true ones, and everything that it derives from them is planned anew.

        Device only, in place; one launch where the driver runs on Triton kernels. The page table stays: its rows have
        a fixed stride and the correction only shrinks.

        Read live: ``staged``, ``accepted`` and the table. Frozen at capture: B and Q.
        """
        if driver.triton is not None and self.qo_len == driver.qo_len:
            inputs = (driver.ladder, driver.kv_lens, driver.page_table)
            driver.triton.correct_and_plan(*inputs, self.staged, self.accepted)
            return
        correct_lengths(driver.kv_lens, self.staged, self.accepted, self.qo_len)
        driver.plan()


@capture_safe(dynamic=("staged", "accepted"), static=("qo_len",), out=("kv_lens",))
def correct_lengths(kv_lens: torch.Tensor, staged: torch.Tensor, accepted: torch.Tensor, qo_len: int) -> None:
    """``kv_lens`` is ``staged`` less the drafts that were not accepted, within 0..staged; device only.

    Args:
        kv_lens: [B] int32, device, tokens; written.
        staged: [B] int32, device, tokens.
        accepted: [B] int32, device, tokens.
        qo_len: Q, the number that was staged as accepted.
    """
    rejected = torch.rsub(accepted, qo_len).clamp_(min=0)
    torch.clamp(staged - rejected, min=0, out=kv_lens)


def restage(
    geometry: Geometry,
    qo_lens: Sequence[int],
    optimistic: Sequence[int],
    rejected: Sequence[int],
    rows: Sequence[Sequence[int]],
    device: torch.device | str,
) -> EagerBatch:
    """A mixed batch planned anew from corrected lengths: flat table and lengths from one source, on the host.

    A row that shrinks across a page boundary moves every row behind it in the flat form, so a table staged from the
    optimistic lengths must not be used with corrected ones.

    Args:
        geometry: sizes.
        qo_lens: query tokens of each request.
        optimistic: lengths as staged, tokens.
        rejected: drafts of the previous step that were not accepted, per request; 0 for context requests.
        rows: physical pages of each request.
        device: where the caches live.

    Raises:
        LengthTooLarge, PageOutOfRange, GeometryError: the corrected batch cannot be served.
    """
    true = [max(length - lost, 0) for length, lost in zip(optimistic, rejected, strict=True)]
    return EagerBatch(geometry, qo_lens, true, FlatTable.stage(rows, true, geometry, device), device)
