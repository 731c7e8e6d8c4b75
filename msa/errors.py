"""Exceptions of msa: one per cause.

::

    MsaError
    ├── GeometryError         sizes that cannot be served (also a ValueError)
    ├── ShapeMismatch         a tensor is not what its place asks for (also a ValueError)
    ├── CapacityExceeded      a batch is larger than what was allocated for it (also a ValueError)
    │   ├── BatchTooLarge     more requests than rows
    │   └── LengthTooLarge    a request needs more tokens or pages than a row of the page table holds
    ├── PageOutOfRange        a page that a request needs is not a page of the pool (also a ValueError)
    ├── StaleTable            a flat page table and the lengths come from different sources (also a ValueError)
    └── RoutingRefused        a batch that no path serves (also a ValueError)
"""

from __future__ import annotations


class MsaError(Exception):
    """Base of everything that msa raises on purpose."""


class GeometryError(MsaError, ValueError):
    """Sizes that cannot be served."""


class ShapeMismatch(MsaError, ValueError):
    """A tensor does not have the shape, dtype or device that its place asks for."""


class CapacityExceeded(MsaError, ValueError):
    """A batch is larger than what was allocated for it."""


class BatchTooLarge(CapacityExceeded):
    """More requests than the driver or the table has rows."""


class LengthTooLarge(CapacityExceeded):
    """A request needs more tokens or pages than a row of the page table holds."""


class PageOutOfRange(MsaError, ValueError):
    """A page that a request needs is not a page of the pool."""


class StaleTable(MsaError, ValueError):
    """A flat page table and the lengths come from different sources."""


class RoutingRefused(MsaError, ValueError):
    """A batch that no path serves."""
