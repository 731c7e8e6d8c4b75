"""Direct Python bindings: the same kernels as the overloads, a microsecond or two cheaper a call."""

from __future__ import annotations

from typing import Any

import torch

# Overloads whose binding takes the arguments of the schema in the same order and picks the same overload.
_FUNCTIONS = (
    "abs",
    "add.Tensor",
    "addmm",
    "all.default",
    "all.dim",
    "amax",
    "amin",
    "any.default",
    "any.dim",
    "argmax",
    "argmin",
    "baddbmm",
    "bitwise_and.Scalar",
    "bitwise_and.Tensor",
    "bitwise_not",
    "bitwise_or.Scalar",
    "bitwise_or.Tensor",
    "bmm",
    "cat",
    "ceil",
    "clamp",
    "clamp_max",
    "clamp_min",
    "cos",
    "cumsum",
    "div.Tensor",
    "div.Tensor_mode",
    "eq.Scalar",
    "eq.Tensor",
    "exp",
    "floor",
    "floor_divide",
    "gather",
    "ge.Scalar",
    "ge.Tensor",
    "gt.Scalar",
    "gt.Tensor",
    "index_select",
    "isfinite",
    "isnan",
    "le.Scalar",
    "le.Tensor",
    "log",
    "logical_and",
    "logical_not",
    "logical_or",
    "lt.Scalar",
    "lt.Tensor",
    "maximum",
    "mean.dim",
    "minimum",
    "mm",
    "mul.Tensor",
    "mv",
    "ne.Scalar",
    "ne.Tensor",
    "neg",
    "pow.Scalar",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "reciprocal",
    "remainder.Scalar",
    "remainder.Tensor",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sort",
    "sqrt",
    "sub.Tensor",
    "sum.dim_IntList",
    "tanh",
    "topk",
    "tril",
    "triu",
    "where.self",
    "_softmax",
    "_log_softmax",
)
_NEURAL = (
    "gelu",
    "silu",
    "leaky_relu",
    "softplus",
)
_METHODS = (
    "add_",
    "addcmul_",
    "addmm_",
    "bitwise_and_",
    "bitwise_or_",
    "clamp_",
    "copy_",
    "cumsum_",
    "div_",
    "exp_",
    "fill_",
    "index_add_",
    "index_copy_",
    "index_fill_",
    "index_put_",
    "masked_fill_",
    "mul_",
    "neg_",
    "relu_",
    "scatter_",
    "scatter_add_",
    "sub_",
    "zero_",
)
# Copies: the target has the dtype and the strides already.
_COPIES = frozenset({"_to_copy", "clone"})
_FILLS = {"zeros": 0, "zeros_like": 0, "new_zeros": 0, "ones": 1, "ones_like": 1, "new_ones": 1}


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


def _table() -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for home, names in ((torch, _FUNCTIONS), (torch._C._nn, _NEURAL)):
        for name in names:
            binding = getattr(home, name.partition(".")[0], None)
            if binding is not None:
                found[_overload(name)] = binding
    for name in _METHODS:
        packet = getattr(torch.ops.aten, name)
        method = getattr(torch.Tensor, name)
        found.update({getattr(packet, overload): method for overload in packet.overloads() if "out" not in overload})
    found.pop(None, None)
    return found


DIRECT = _table()


def copying(packet: str) -> bool:
    """Whether a functional operator only copies its first argument."""
    return packet in _COPIES


def filling(packet: str) -> int | None:
    """The number with which a factory fills its result."""
    return _FILLS.get(packet)
