"""The gated activation of a feed-forward layer, elementwise."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from eagle3.ops.swiglu import check_swiglu, swiglu_meta
from eagle3.ops.triton.launch import aligned_rows, lane, lanes_apart, launch_options, opaque

BLOCK = 1024


@triton.jit(do_not_specialize=["gate_lanes", "up_lanes"])
def _gated(out, gate, up, gate_lanes, up_lanes, I: tl.constexpr, BLOCK: tl.constexpr, LANE: tl.constexpr):  # noqa: E741
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    left = tl.load(gate + row * gate_lanes * LANE + column, mask=column < I, other=0.0).to(tl.float32)
    right = tl.load(up + row * up_lanes * LANE + column, mask=column < I, other=0.0).to(tl.float32)
    value = left / (1.0 + tl.exp(-left)) * right
    tl.store(out + row * I + column, value.to(out.dtype.element_ty), mask=column < I)


def _swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    out = gate.new_empty(gate.shape)
    if gate.shape[0] == 0:
        return out
    gate, up = aligned_rows(gate), aligned_rows(up)
    rows, width = gate.shape
    _gated[(rows, -(-width // BLOCK))](
        out,
        gate,
        up,
        lanes_apart(gate),
        lanes_apart(up),
        I=width,
        BLOCK=BLOCK,
        LANE=lane(gate.dtype),
        **launch_options(4),
    )
    return out


_operator = opaque("swiglu(Tensor gate, Tensor up) -> Tensor", _swiglu, swiglu_meta)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` [T, I] in their dtype, computed in fp32 and rounded once.

    One launch, grid (T, I / 1024).

    Args:
        gate, up: [T, I] any float dtype, device; the rows may be views of wider ones.

    Raises:
        ShapeMismatch: they differ in shape or dtype.

    Read live: both tensors. Frozen at capture: shapes and dtypes.
    """
    check_swiglu(gate, up)
    return _operator(gate, up)
