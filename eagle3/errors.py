"""Exceptions of eagle3: one per cause.

::

    Eagle3Error
    ├── ShapeMismatch          a tensor is not what its place asks for (also a ValueError)
    ├── CreationRefused        a configuration that contradicts itself or cannot be held (also a ValueError)
    │   ├── NotServed          one that could be served, but is not (also a NotImplementedError)
    │   └── BudgetInfeasible   the memory that caches need in any case exceeds the budget
    ├── RequirementMissing     a package is absent or too old (also an ImportError)
    ├── OverrideRefused        a subclass replaces what holds an invariant (also a TypeError)
    ├── ManagerMismatch        a scheduler calls what a cache manager cannot do (also a TypeError)
    ├── UnknownKernels         there are no such kernels (also a ValueError)
    ├── HeadConfigRefused      a head's config that cannot be served, or cannot be understood (also a ValueError)
    ├── CheckpointFormat       a checkpoint is in no format that is read (also a ValueError)
    ├── CheckpointMismatch     tensors of a checkpoint are missing, unknown or wrong (also a ValueError)
    ├── KvError                a request's cache cannot do this (also a ValueError)
    │   ├── OutOfPages         the pool has fewer free pages than are asked for
    │   ├── PageNotHeld        a page comes back that nobody took
    │   ├── UnknownRequest     no cache has this id
    │   ├── RequestExists      a cache has this id already
    │   ├── CacheNotActive     the cache is suspended, its pages are not in the pool
    │   ├── HistoryViolated    a capacity below the history, or a history that shrinks
    │   └── NothingInFlight    a step is settled or cancelled that was never granted
    ├── MirrorMismatch         the host settles a step that it did not launch (also a ValueError)
    ├── DummiesNotLast         a padding row stands before a real one (also a ValueError)
    ├── BucketMissing          no bucket holds the batch (also a ValueError)
    └── BucketsNotCaptured     buckets that were asked for have no graph (also a RuntimeError)
"""

from __future__ import annotations

from collections.abc import Sequence


class Eagle3Error(Exception):
    """Base of everything that eagle3 raises on purpose."""


class ShapeMismatch(Eagle3Error, ValueError):
    """A tensor does not have the shape, dtype or device that its place asks for."""


class CreationRefused(Eagle3Error, ValueError):
    """A configuration that contradicts itself or cannot be held.

    Args:
        message: what is refused, and what to do.
        reasons: each objection by itself.
    """

    def __init__(self, message: str, reasons: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.reasons = tuple(reasons) or (message,)


class NotServed(CreationRefused, NotImplementedError):
    """A configuration that could be served, but is not."""


class BudgetInfeasible(CreationRefused):
    """The memory that caches need in any case exceeds the budget."""


class RequirementMissing(Eagle3Error, ImportError):
    """A package is absent or too old."""


class OverrideRefused(Eagle3Error, TypeError):
    """A subclass replaces a method that holds an invariant."""


class ManagerMismatch(Eagle3Error, TypeError):
    """A scheduler calls what a cache manager cannot do."""


class UnknownKernels(Eagle3Error, ValueError):
    """There are no such kernels."""


class HeadConfigRefused(Eagle3Error, ValueError):
    """A head's config says something that cannot be served, or does not say what is needed."""


class CheckpointFormat(Eagle3Error, ValueError):
    """A checkpoint is in no format that is read."""


class CheckpointMismatch(Eagle3Error, ValueError):
    """Tensors of a checkpoint are missing, unknown, or not of the shape that the config asks for."""


class KvError(Eagle3Error, ValueError):
    """A request's cache cannot do this."""


class OutOfPages(KvError):
    """The pool has fewer free pages than are asked for."""


class PageNotHeld(KvError):
    """A page comes back to the pool that nobody took."""


class UnknownRequest(KvError):
    """No cache has this id."""


class RequestExists(KvError):
    """A cache has this id already."""


class CacheNotActive(KvError):
    """The cache is suspended, its pages are not in the pool."""


class HistoryViolated(KvError):
    """A capacity below the history, or a history that shrinks."""


class NothingInFlight(KvError):
    """A step is settled or cancelled that was never granted."""


class MirrorMismatch(Eagle3Error, ValueError):
    """The host settles a step that it did not launch."""


class DummiesNotLast(Eagle3Error, ValueError):
    """A padding row stands before a real one."""


class BucketMissing(Eagle3Error, ValueError):
    """No bucket holds the batch."""


class BucketsNotCaptured(Eagle3Error, RuntimeError):
    """Buckets that were asked for have no graph."""
