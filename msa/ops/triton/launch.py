"""What every launch shares: the operator library, and one specialisation per variant."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton

from msa.errors import ShapeMismatch
from msa.geometry import ALIGNMENT
from msa.ops.library import TRITON_LIBRARY, operator

# Multiprocessors of a Hopper GPU.
UNITS = 132


def opaque(schema: str, body: Callable[..., None]) -> Callable[..., None]:
    """Define ``msa_triton::name`` with a body that launches Triton kernels; returns its default overload."""
    return operator(schema, body, TRITON_LIBRARY)


def check_aligned(**tensors: torch.Tensor | None) -> None:
    """Pass if every tensor is contiguous and starts at a multiple of 16 bytes.

    Triton compiles a variant of its own for addresses that are no such multiple. Refusing them keeps the number of
    variants at one, so that a view at an odd offset cannot compile inside a capture.

    Raises:
        ShapeMismatch: one does not; every one is named.
    """
    wrong = [
        f"{name} (contiguous: {tensor.is_contiguous()}, address modulo {ALIGNMENT}: {tensor.data_ptr() % ALIGNMENT})"
        for name, tensor in tensors.items()
        if tensor is not None and (not tensor.is_contiguous() or tensor.data_ptr() % ALIGNMENT)
    ]
    if wrong:
        raise ShapeMismatch(
            f"the kernels take contiguous tensors that start at a multiple of {ALIGNMENT} bytes, got {', '.join(wrong)}; "
            "pass the whole buffer or a view at an aligned offset"
        )


def power_of_two(count: int, least: int = 1) -> int:
    """The smallest power of two that is at least ``count`` and ``least``."""
    return max(1 << (max(count, 1) - 1).bit_length(), least)


def interpreted(kernel: object) -> bool:
    """Whether Triton's interpreter runs this kernel."""
    return not isinstance(kernel, triton.JITFunction)


def needs_wide(kernel: object, dtype: torch.dtype) -> bool:
    """Whether products of this dtype must be made in fp32: fp32 itself, and everything in Triton's interpreter.

    The interpreter multiplies the bit patterns of bf16 as integers.
    """
    return dtype is torch.float32 or interpreted(kernel)


def launch_options(num_warps: int, pdl: bool, **more: object) -> dict[str, object]:
    """Options of a launch.

    No product and sum become one operation unless a kernel says ``fma``: which ones do would otherwise be the compiler's
    choice, another one for each variant of a kernel, and variants must agree in bits.
    """
    return {"num_warps": num_warps, "launch_pdl": pdl, "enable_fp_fusion": False, **more}
