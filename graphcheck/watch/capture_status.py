"""The capture-status call, answered falsely: what a region does that does not know that it is being captured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def denied() -> Iterator[None]:
    """Inside the block ``torch.cuda.is_current_stream_capturing()`` says no."""
    before = torch.cuda.is_current_stream_capturing
    torch.cuda.is_current_stream_capturing = lambda: False
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = before
