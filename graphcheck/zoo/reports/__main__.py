"""``python -m graphcheck.zoo.reports`` prints ``docs/reports.md``."""

from __future__ import annotations

from graphcheck.zoo.reports.table import table

if __name__ == "__main__":
    print(table(), end="")
