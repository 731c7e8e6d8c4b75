"""Warm-up: runs before a capture leave no trace in what the loop advances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from graphcheck.contract import refuse_while_capturing


class Snapshot:
    """Values of tensors, to be put back in place.

    Values, not objects: attention kernels hold views of the original storage, so swapping in a clone would hide the
    loop's updates from them.

    Args:
        tensors: what to save, by name.

    Raises:
        CaptureRefused: the current stream is capturing; the copies would lie in the graph's pool.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        refuse_while_capturing("warm-up snapshot")
        self.tensors = dict(tensors)
        self.values = {name: tensor.clone() for name, tensor in self.tensors.items()}

    def restore(self) -> None:
        """Every tensor holds what it held, at the address it had.

        Raises:
            CaptureRefused: the current stream is capturing; every replay would undo its own step.
        """
        refuse_while_capturing("restored warm-up state")
        for name, tensor in self.tensors.items():
            tensor.copy_(self.values[name])


@contextmanager
def saved(tensors: Mapping[str, torch.Tensor], *, warming: bool = True) -> Iterator[None]:
    """Inside the block a step may advance ``tensors``; behind it they hold what they held, also after an exception.

    Does nothing while the current stream is capturing, where a clone would live in the graph's pool and the restore
    would become part of every replay, and nothing in a step that is no warm-up.

    Random generators, penalty counts and draft probabilities do not belong here: they must advance in every run.

    Args:
        tensors: everything that a step advances, by name.
        warming: whether this is a warm-up run.
    """
    if not warming or _capturing():
        yield
        return
    snapshot = Snapshot(tensors)
    try:
        yield
    finally:
        snapshot.restore()


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
