"""Exceptions of eagle3: one per cause.

::

    Eagle3Error
    ├── ShapeMismatch         a tensor is not what its place asks for (also a ValueError)
    ├── UnknownKernels        there are no such kernels (also a ValueError)
    ├── HeadConfigRefused     a head's config that cannot be served, or cannot be understood (also a ValueError)
    ├── CheckpointFormat      a checkpoint is in no format that is read (also a ValueError)
    └── CheckpointMismatch    tensors of a checkpoint are missing, unknown or wrong (also a ValueError)
"""

from __future__ import annotations


class Eagle3Error(Exception):
    """Base of everything that eagle3 raises on purpose."""


class ShapeMismatch(Eagle3Error, ValueError):
    """A tensor does not have the shape, dtype or device that its place asks for."""


class UnknownKernels(Eagle3Error, ValueError):
    """There are no such kernels."""


class HeadConfigRefused(Eagle3Error, ValueError):
    """A head's config says something that cannot be served, or does not say what is needed."""


class CheckpointFormat(Eagle3Error, ValueError):
    """A checkpoint is in no format that is read."""


class CheckpointMismatch(Eagle3Error, ValueError):
    """Tensors of a checkpoint are missing, unknown, or not of the shape that the config asks for."""
