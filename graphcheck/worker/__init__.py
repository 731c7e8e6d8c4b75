"""Isolation: plans run in a child process; children are forked from a process that has imported everything, but has no
device context, so that a crash costs no start-up time."""

from __future__ import annotations

from graphcheck.worker.child import Nursery
from graphcheck.worker.isolated import IsolatedRunner

__all__ = ["IsolatedRunner", "Nursery"]
