"""The operator library ``msa``: one definition per schema, with a plain torch body."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

LIBRARY = torch.library.Library("msa", "DEF")


def operator(schema: str, body: Callable[..., None]) -> Callable[..., None]:
    """Define ``msa::name`` with ``body`` for every device; returns the operator's default overload.

    Args:
        schema: ``"name(Tensor(a!) out, ...) -> ()"``.
    """
    LIBRARY.define(schema)
    name = schema.split("(", 1)[0]
    LIBRARY.impl(name, body, "CompositeExplicitAutograd")
    overload: Any = getattr(torch.ops.msa, name).default
    return overload  # type: ignore[no-any-return]
