"""Defects of real speculative loops, planted in eagle3's components, each with a clean twin."""

from __future__ import annotations

from eagle3.zoo import frozen, lengths, staging
from graphcheck.zoo import Entry

ZOO: list[Entry] = [*lengths.ZOO, *frozen.ZOO, *staging.ZOO]
