"""Poison: a bit pattern that no computation leaves behind by accident."""

from __future__ import annotations

import torch

PATTERN = 0x7FFA  # NaN as fp16, bf16, fp32 and fp64; large and positive as a wider integer

_INTEGER_VIEW = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WORD = {
    1: 0x7F,
    2: PATTERN,
    4: PATTERN << 16 | PATTERN,
    8: PATTERN << 48 | PATTERN << 32 | PATTERN << 16 | PATTERN,
}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bits as integers of the same width, a view; complex128 as its two halves."""
    tensor = tensor.detach()
    if tensor.dtype is torch.complex128:
        tensor = torch.view_as_real(tensor)
    return tensor.view(_INTEGER_VIEW[tensor.element_size()])


def poison(tensor: torch.Tensor) -> None:
    """Fill ``tensor`` (any dtype, strides and device) with poison, in place. Booleans become True."""
    if tensor.dtype is torch.bool:
        tensor.detach().fill_(True)
    else:
        view = bits(tensor)
        view.fill_(_WORD[view.element_size()])


def poisoned(tensor: torch.Tensor) -> torch.Tensor:
    """Where ``tensor`` still holds poison: a boolean tensor of its shape. Booleans and bytes count as never poisoned."""
    if tensor.element_size() == 1:
        return torch.zeros(tensor.shape, dtype=torch.bool, device=tensor.device)
    view = bits(tensor)
    marked = view == _WORD[view.element_size()]
    return marked.all(-1) if tensor.dtype is torch.complex128 else marked


def zero_where(tensor: torch.Tensor, mask: torch.Tensor) -> None:
    """Clear the bits of ``tensor`` (any dtype, strides and device) where ``mask``, of its shape, is True; in place."""
    # Torch fills neither fp8 nor masked views of it; its bits are integers.
    view = bits(tensor)
    view.masked_fill_(mask.unsqueeze(-1) if tensor.dtype is torch.complex128 else mask, 0)
