"""The reference rung: is the eager answer right, within the declared tolerance?"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from graphcheck.compare import Mismatch, describe
from graphcheck.component import EXACT, Tolerance
from graphcheck.errors import ContractError


def outside_tolerance(
    name: str,
    expected: torch.Tensor,
    got: torch.Tensor,
    mask: torch.Tensor | None,
    tolerance: Tolerance | Mapping[str, Tolerance],
) -> Mismatch | None:
    """The first element of ``got`` that lies further from the reference than allowed; None if all are right.

    Args:
        expected: the reference, float64 for floats, CPU, same shape; integers and booleans compare exactly.
        got: the eager answer, CPU.
        mask: where to look; None means everywhere.
        tolerance: one for all outputs, or by name (exact where the name is missing).
    """
    expected = expected.detach().cpu()
    if expected.shape != got.shape:
        raise ContractError(
            f"reference() gave {name} of shape {tuple(expected.shape)}, the run gave {tuple(got.shape)}; they must agree"
        )
    # Only what is asked about: a step writes a few slots of a large cache.
    where = None if mask is None else mask.expand(got.shape)
    right, actual = (expected, got) if where is None else (expected[where], got[where])
    if not got.dtype.is_floating_point:
        off = right.to(torch.int64) != actual.to(torch.int64)
    else:
        allowed = tolerance if isinstance(tolerance, Tolerance) else tolerance.get(name, EXACT)
        off = _far(right.double(), actual, allowed)
    if not bool(off.any()):
        return None
    wrong = off if where is None else torch.zeros_like(where).masked_scatter_(where, off)
    return describe(name, expected.to(got.dtype), got, wrong)


def _far(expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    """Where ``got`` is further from ``expected`` than ``ulps`` units in its own last place plus ``absolute``."""
    info = torch.finfo(got.dtype)
    nearest = expected.to(got.dtype).double()
    exponent = torch.frexp(nearest.abs().clamp_min(info.tiny))[1] - 1
    unit = torch.full_like(nearest, info.eps).ldexp_(exponent)
    allowed = tolerance.ulps * unit + tolerance.absolute
    actual = got.double()
    both_nan = nearest.isnan() & actual.isnan()
    equal = both_nan | (nearest == actual)
    near = (actual - (expected if tolerance != EXACT else nearest)).abs() <= allowed
    return ~(equal | near)
