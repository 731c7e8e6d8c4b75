"""`graphcheck lint`: static rules over Python source, by the standard library's ``ast``; torch is never imported."""

from __future__ import annotations

from graphcheck.lint.rules import CODES
from graphcheck.lint.run import Result, lint
from graphcheck.lint.settings import Settings, load

__all__ = ["CODES", "Result", "Settings", "lint", "load"]
