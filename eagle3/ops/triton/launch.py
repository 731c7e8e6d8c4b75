"""What every launch shares: the operator library, and one specialisation per variant."""

from __future__ import annotations

import torch
import triton

from eagle3.errors import ShapeMismatch
from eagle3.ops.library import TRITON_LIBRARY, Body, operator

ALIGNMENT = 16


def opaque(schema: str, body: Body, meta: Body) -> Body:
    """Define ``eagle3_triton::name`` with a body that launches Triton kernels; returns its default overload."""
    return operator(schema, body, meta, TRITON_LIBRARY)


def lane(dtype: torch.dtype) -> int:
    """Elements in 16 bytes."""
    return ALIGNMENT // dtype.itemsize


def aligned_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor if its rows are dense, start at a multiple of 16 bytes and are one apart; else a copy that is so.

    Triton compiles a variant of its own for rows that are not. With one variant alone none is compiled inside a
    capture, and no row is computed by other code than its neighbour.
    """
    step = tensor.stride(0) * tensor.element_size() if tensor.shape[0] > 1 else 0
    dense = tensor.shape[0] == 0 or tensor[0].is_contiguous()
    if dense and tensor.data_ptr() % ALIGNMENT == 0 and step % ALIGNMENT == 0:
        return tensor
    rows = tensor.flatten(1)
    width = rows.shape[1]
    full = tensor.new_empty(rows.shape[0], -(-width // lane(tensor.dtype)) * lane(tensor.dtype))
    full[:, :width].copy_(rows)
    return full[:, :width].view(tensor.shape)


def lanes_apart(tensor: torch.Tensor) -> int:
    """How far apart aligned rows are, in units of `lane`, so that the compiler knows that it is a whole number."""
    return tensor.stride(0) // lane(tensor.dtype) if tensor.shape[0] > 1 else 0


def check_aligned(**tensors: torch.Tensor | None) -> None:
    """Pass if every tensor is contiguous and starts at a multiple of 16 bytes.

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
            f"the kernels take contiguous weights that start at a multiple of {ALIGNMENT} bytes, got "
            f"{', '.join(wrong)}; pass a copy of them"
        )


def interpreted(kernel: object) -> bool:
    """Whether the kernel runs in Triton's interpreter."""
    return not isinstance(kernel, triton.JITFunction)


def launch_options(num_warps: int) -> dict[str, object]:
    """Options of a launch. What a compiler's environment could change, and with it bits, is said here."""
    return {"num_warps": num_warps, "enable_fp_fusion": True}
