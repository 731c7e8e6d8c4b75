"""Tests in this folder need an NVIDIA GPU; without one they are skipped, each with that reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
WITHOUT_GPU = pytest.mark.skip(reason="needs an NVIDIA GPU: torch.cuda.is_available() is False")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(WITHOUT_GPU)
