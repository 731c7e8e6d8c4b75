"""Exceptions of the M3-shaped target: one per cause.

::

    Eagle3Error
    └── M3Error
        ├── TargetConfigRefused   sizes of a target that cannot be built (also a ValueError)
        ├── WeightsMismatch       tensors that are missing, unknown or of another shape (also a ValueError)
        ├── TextUnreadable        the training text is not where it should be (also an OSError)
        └── TextDiffers           the training text is not the listed one (also a ValueError)
"""

from __future__ import annotations

from eagle3.errors import Eagle3Error


class M3Error(Eagle3Error):
    """Base of everything that the target and its training raise on purpose."""


class TargetConfigRefused(M3Error, ValueError):
    """Sizes of a target that cannot be built; every objection is named."""


class WeightsMismatch(M3Error, ValueError):
    """Tensors are missing, unknown or of another shape; all of them are named."""


class TextUnreadable(M3Error, OSError):
    """The training text is neither a folder nor an archive that can be read."""


class TextDiffers(M3Error, ValueError):
    """The training text is not the listed one; the files that differ are named."""
