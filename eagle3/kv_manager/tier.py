"""The host tier: where the contents of suspended requests are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from graphcheck.contract import refuse_while_capturing


class Tier(Protocol):
    """What a manager asks of a place for pages that leave the pool."""

    def store(self, request: int, pages: Sequence[int]) -> None:
        """Keep what these pages hold."""

    def load(self, request: int, pages: Sequence[int]) -> None:
        """Put it into these pages; behind the stored ones they hold anything, and fewer take a part."""

    def drop(self, request: int) -> None:
        """Forget it."""


class HostTier:
    """Copies of pages in host memory.

    Args:
        tensors: caches of all layers, each [pages, ...] on any device.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = list(tensors)
        self.kept: dict[int, list[torch.Tensor]] = {}

    def store(self, request: int, pages: Sequence[int]) -> None:
        """Copies of these pages are kept, in order.

        Raises:
            CaptureRefused: the current stream is capturing.
        """
        refuse_while_capturing("host copy of pages")
        self.kept[request] = [tensor[list(pages)].cpu() for tensor in self.tensors]

    def load(self, request: int, pages: Sequence[int]) -> None:
        """The pages hold the copies again, as many as there are of both; the copies are forgotten."""
        for tensor, copy in zip(self.tensors, self.kept.pop(request), strict=True):
            count = min(len(pages), copy.shape[0])
            tensor[list(pages[:count])] = copy[:count].to(tensor.device)

    def drop(self, request: int) -> None:
        """The copies are forgotten."""
        self.kept.pop(request, None)
