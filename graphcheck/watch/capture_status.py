"""The capture-status call, answered falsely: what a region does that does not know that it is being captured."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_BACKENDS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "backend") + os.sep


@contextmanager
def denied() -> Iterator[None]:
    """Inside the block ``torch.cuda.is_current_stream_capturing()`` says no to everyone but the backends."""
    before = torch.cuda.is_current_stream_capturing

    def answer() -> bool:
        return before() if sys._getframe(1).f_code.co_filename.startswith(_BACKENDS) else False

    torch.cuda.is_current_stream_capturing = answer
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = before
