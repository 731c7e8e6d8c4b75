"""Lengths of the loop: one source of truth, and what verify and each draft step read, on the device.

With past the tokens of a request that have valid target KV, L drafts and n tokens kept, 1..1+L::

    verify, and draft step 0   kv_lens past + 1 + L     positions past .. past + L
    after acceptance           past + n
    draft step i >= 1          kv_lens past + n + i     position past + n + i - 1
    after the loop             kv_lens past + n + L, which is n - 1 above what was staged
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from eagle3.errors import CreationRefused, ShapeMismatch
from eagle3.warmup import Snapshot
from graphcheck.contract import capture_safe, refuse_while_capturing


def extra_kv_tokens(draft_len: int) -> int:
    """Tokens that a draft cache holds beyond the verify step's: draft steps write up to position past + 2 L - 1."""
    return max(draft_len - 1, 0)


class DraftLengths:
    """What the loop advances, for a fixed number of requests and drafts.

    ``past`` is the only state; everything else is computed from it anew, so no call can be one too many. Rows whose
    past is 0 are padding: a request that is being generated has its prompt in the cache. They stay 0 throughout.

    A step is: `verify_lens`, the target's forward and the acceptance into ``count``, `after_accept`, draft step 0,
    `draft_advance` (0), draft step 1, and so on; then ``past`` is that of the next step.

    Args:
        batch: B.
        draft_len: L, 0 or more.
        device: where the tensors live.
        kv_lens: [B] int32, device, that drivers already read; allocated here if left out.
        past: [B] int32, device, that buckets share; allocated here if left out.

    Attributes:
        past: [B] int32, device, tokens with valid target KV. State.
        count: [B] int32, device, tokens that the step keeps, 0 in padding rows. Input of `after_accept`.
        kv_lens: [B] int32, device, tokens: what the attention of the coming forward reads.
        positions: [T] int32, device: of the verify step's tokens, request-major; 0 in padding rows.
        draft_positions: [B] int32, device: of the coming draft step's tokens; 0 in padding rows.

    Raises:
        CaptureRefused: the current stream is capturing.
        CreationRefused: a size is out of range.
        ShapeMismatch: a tensor that was passed has the wrong shape or dtype.
    """

    def __init__(
        self,
        batch: int,
        draft_len: int,
        device: torch.device | str,
        *,
        kv_lens: torch.Tensor | None = None,
        past: torch.Tensor | None = None,
    ) -> None:
        refuse_while_capturing("draft lengths")
        if batch < 1 or draft_len < 0:
            raise CreationRefused(f"batch {batch} and draft_len {draft_len}; expected at least 1 and 0")
        self.batch = batch
        self.draft_len = draft_len
        self.qo_len = 1 + draft_len

        def per_request(name: str, given: torch.Tensor | None) -> torch.Tensor:
            if given is None:
                return torch.zeros(batch, dtype=torch.int32, device=device)
            if tuple(given.shape) != (batch,) or given.dtype is not torch.int32:
                raise ShapeMismatch(f"{name} is {given.dtype} {tuple(given.shape)}; expected int32 of shape ({batch},)")
            return given

        self.past = per_request("past", past)
        self.kv_lens = per_request("kv_lens", kv_lens)
        self.count = per_request("count", None)
        self.draft_positions = per_request("draft_positions", None)
        self.positions = torch.zeros(batch * self.qo_len, dtype=torch.int32, device=device)
        self.steps = torch.arange(self.qo_len, dtype=torch.int32, device=device)
        self.real = per_request("real", None)

    def stage(self, past: Sequence[int]) -> None:
        """``past`` holds these tokens and 0 behind them, and the verify lengths follow; in place, from the host.

        A context request whose prompt has just been read is staged with its length: its draft steps are then those of
        any other request.

        Raises:
            ShapeMismatch: more requests than rows, or a negative length.
        """
        if len(past) > self.batch or any(tokens < 0 for tokens in past):
            raise ShapeMismatch(f"past {list(past)}; expected at most {self.batch} lengths, none of them negative")
        values = torch.zeros(self.batch, dtype=torch.int32)
        values[: len(past)] = torch.tensor(list(past), dtype=torch.int32)
        self.past.copy_(values)
        self.verify_lens()

    def verify_lens(self) -> None:
        """``kv_lens`` and ``positions`` are those of the verify step; device only, idempotent."""
        plan_verify(self.past, self.steps, self.real, self.kv_lens, self.positions)

    def after_accept(self) -> None:
        """``past`` holds the tokens that are valid behind ``count`` kept ones; device only, once a step.

        ``kv_lens`` stays: draft step 0 reads what the verify step read.
        """
        self.past.add_(self.count)

    def draft_advance(self, step: int) -> None:
        """``kv_lens`` and ``draft_positions`` are those of draft step ``step + 1``; device only, idempotent.

        Args:
            step: the draft step that has run, 0..L-1. After the last one nothing reads the lengths.
        """
        plan_draft(self.past, self.real, step + 1, self.kv_lens, self.draft_positions)

    def drift(self) -> torch.Tensor:
        """How far ``kv_lens`` [B] int32 is above what this step's verify read; after `after_accept`, for tests."""
        return self.kv_lens - (self.past - self.count + self.real * self.qo_len)

    def advanced(self) -> dict[str, torch.Tensor]:
        """Every tensor that a step changes, by name: what a warm-up saves and puts back."""
        return {
            "past": self.past,
            "count": self.count,
            "kv_lens": self.kv_lens,
            "positions": self.positions,
            "draft_positions": self.draft_positions,
            "real": self.real,
        }

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Inside the block every row is padding, whatever runs; behind it everything is what it was.

        Raises:
            CaptureRefused: the current stream is capturing.
        """
        before = Snapshot(self.advanced())
        try:
            for tensor in self.advanced().values():
                tensor.zero_()
            yield
        finally:
            before.restore()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor, by name; their addresses never change."""
        return self.advanced() | {"steps": self.steps}


@capture_safe(dynamic=("past",), static=("steps",), out=("real", "kv_lens", "positions"))
def plan_verify(
    past: torch.Tensor, steps: torch.Tensor, real: torch.Tensor, kv_lens: torch.Tensor, positions: torch.Tensor
) -> None:
    """Lengths and positions of a verify step follow from ``past``; device only, nothing is allocated.

    Args:
        past: [B] int32, device, tokens; 0 in padding rows.
        steps: [Q] int32, device: 0..L.
        real: [B] int32, device; written: 1, or 0 in padding rows.
        kv_lens: [B] int32, device; written.
        positions: [B * Q] int32, device; written.
    """
    qo_len = steps.shape[0]
    torch.sign(past, out=real)
    torch.add(past, real, alpha=qo_len, out=kv_lens)
    torch.addcmul(past.unsqueeze(1), real.unsqueeze(1), steps, out=positions.view(-1, qo_len))


@capture_safe(dynamic=("past", "real"), static=("step",), out=("kv_lens", "draft_positions"))
def plan_draft(
    past: torch.Tensor, real: torch.Tensor, step: int, kv_lens: torch.Tensor, draft_positions: torch.Tensor
) -> None:
    """Lengths and positions of draft step ``step`` >= 1 follow from ``past``; device only, nothing is allocated.

    Args:
        past: [B] int32, device, tokens: behind the acceptance.
        real: [B] int32, device: 1, or 0 in padding rows.
        step: which draft step.
        kv_lens, draft_positions: [B] int32, device; written.
    """
    torch.add(past, real, alpha=step, out=kv_lens)
    torch.sub(kv_lens, real, out=draft_positions)
