"""The region of the harness's own graph in a component's pool: it overwrites what it gets there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from graphcheck.poison import poison


def overwriting(
    sizes: Sequence[int], outputs: Sequence[torch.Tensor], device: torch.device
) -> Callable[[], Mapping[str, torch.Tensor]]:
    """A region that poisons new memory of the given sizes (bytes, the largest first) and ``outputs``.

    What it allocates is its output, so that it keeps it as long as the graph lives.
    """

    def region() -> Mapping[str, torch.Tensor]:
        taken = [
            torch.empty(size // 2, dtype=torch.int16, device=device) for size in sorted(sizes, reverse=True) if size > 1
        ]
        for tensor in (*taken, *outputs):
            poison(tensor)
        return {f"taken {number}": tensor for number, tensor in enumerate(taken)}

    return region
