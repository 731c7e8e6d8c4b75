"""Reports: what one run found, as objects and as the JSON schema ``graphcheck-report/1``. Never imports torch."""

from __future__ import annotations

from graphcheck.report.model import SCHEMA, Counts, KeyCounts, Report, TargetReport

__all__ = ["SCHEMA", "Counts", "KeyCounts", "Report", "TargetReport"]
