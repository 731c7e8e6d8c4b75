"""Public reports of CUDA graphs going wrong, each as a planted component with a clean twin."""

from __future__ import annotations

from graphcheck.zoo.reports import addresses, lengths, plans
from graphcheck.zoo.reports.entry import Snippet, Undetected
from graphcheck.zoo.reports.sources import SOURCES

MODULES = (lengths, plans, addresses)
ZOO = [entry for module in MODULES for entry in module.ZOO]
UNDETECTED: list[Undetected] = [entry for module in MODULES for entry in getattr(module, "UNDETECTED", [])]
STATIC: list[Snippet] = []

__all__ = ["SOURCES", "STATIC", "UNDETECTED", "ZOO"]
