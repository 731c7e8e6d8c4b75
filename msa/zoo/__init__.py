"""Defects of real decode drivers, planted in msa's components, each with a clean twin."""

from __future__ import annotations

from graphcheck.zoo import Entry
from msa.zoo import frozen, kernels, staging, values

ZOO: list[Entry] = [*frozen.ZOO, *kernels.ZOO, *staging.ZOO, *values.ZOO]
