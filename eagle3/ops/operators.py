"""Which operators a model computes with: one choice, made when it is built."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch

from eagle3.errors import UnknownKernels
from eagle3.ops import plain
from eagle3.ops.linear import linear
from eagle3.ops.rms_norm import rms_norm
from eagle3.ops.rope import rope
from eagle3.ops.swiglu import swiglu

KERNELS = ("portable", "triton", "plain")


class Operators:
    """The operators of a model.

    Args:
        kernels: "portable" for torch bodies on every device, whose rows keep their bits on the CPU; "triton" for the
            kernels in ``eagle3.ops.triton``, whose rows keep them on the GPU (needs triton and a GPU, or Triton's
            interpreter); "plain" for torch's own, which promise nothing, to measure against.

    Attributes:
        linear: (x [T, Kin], weight [N, Kin], bias [N] or None, dtype or None) -> [T, N].
        rms_norm: (x [T, H], weight [H], eps) -> [T, H].
        rope: (x [T, heads, D], positions [T], table [positions, R]) -> [T, heads, D].
        swiglu: (gate [T, I], up [T, I]) -> [T, I].

    Raises:
        UnknownKernels: there are none of this name.
    """

    linear: Callable[..., torch.Tensor]
    rms_norm: Callable[..., torch.Tensor]
    rope: Callable[..., torch.Tensor]
    swiglu: Callable[..., torch.Tensor]

    def __init__(self, kernels: str = "portable") -> None:
        if kernels not in KERNELS:
            raise UnknownKernels(f"kernels {kernels!r}, expected one of {', '.join(KERNELS)}")
        self.kernels = kernels
        if kernels == "portable":
            self.linear, self.rms_norm, self.rope, self.swiglu = linear, rms_norm, rope, swiglu
            return
        home: ModuleType = plain
        if kernels == "triton":
            # Triton reads its mode when it is imported, and portable users need not have it.
            from eagle3.ops import triton

            home = triton
        self.linear, self.rms_norm, self.rope, self.swiglu = home.linear, home.rms_norm, home.rope, home.swiglu
