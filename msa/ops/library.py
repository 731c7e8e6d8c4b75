"""The operator libraries ``msa`` (plain torch bodies) and ``msa_triton`` (bodies that launch Triton kernels)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

LIBRARY = torch.library.Library("msa", "DEF")
TRITON_LIBRARY = torch.library.Library("msa_triton", "DEF")


def operator(
    schema: str, body: Callable[..., None], library: torch.library.Library = LIBRARY, key: str = ""
) -> Callable[..., None]:
    """Define ``namespace::name`` with ``body``; returns the operator's default overload.

    Args:
        schema: ``"name(Tensor(a!) out, ...) -> ()"``.
        library: the namespace.
        key: dispatch key of the body; every device by default.
    """
    library.define(schema)
    name = schema.split("(", 1)[0]
    library.impl(name, body, key or "CompositeExplicitAutograd")
    overload: Any = getattr(getattr(torch.ops, library.ns), name).default
    return overload  # type: ignore[no-any-return]
