"""The operator libraries ``eagle3`` (plain torch bodies) and ``eagle3_triton`` (bodies that launch Triton kernels)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

LIBRARY = torch.library.Library("eagle3", "DEF")
TRITON_LIBRARY = torch.library.Library("eagle3_triton", "DEF")

Body = Callable[..., torch.Tensor]


def operator(schema: str, body: Body, meta: Body, library: torch.library.Library = LIBRARY) -> Body:
    """Define ``namespace::name`` with a body for every device and one for shapes; returns its default overload.

    Args:
        schema: ``"name(Tensor x, ...) -> Tensor"``; the result is a new tensor.
        meta: called with tensors of the meta device; says shape and dtype.
        library: the namespace.
    """
    library.define(schema)
    name = schema.split("(", 1)[0]
    library.impl(name, body, "CompositeExplicitAutograd")
    library.impl(name, meta, "Meta")
    overload: Any = getattr(getattr(torch.ops, library.ns), name).default
    return overload  # type: ignore[no-any-return]
