"""A pair so small that an engine of it runs in a second, whose drafts are kept in every number."""

from __future__ import annotations

import pytest
import torch

from eagle3.m3.config import TargetConfig
from eagle3.m3.pair_files import Pair
from eagle3.m3.successor import successor_pair


@pytest.fixture(scope="session")
def small_config() -> TargetConfig:
    return TargetConfig(
        dense_layers=1,
        sparse_layers=2,
        hidden_size=32,
        q_heads=4,
        kv_heads=2,
        head_dim=16,
        rotary_dim=8,
        intermediate_size=32,
        vocab_size=64,
        page_size=8,
        top_k=2,
        capture_layers=(0, 1, 2),
        max_seq_len=128,
    )


@pytest.fixture(scope="session")
def counting(small_config: TargetConfig) -> Pair:
    return successor_pair(small_config, unrest=0.65, draft_unrest=0.15, seed=3)


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Four prompts, of which the longest takes five pages and the shortest a part of one."""
    return [
        torch.randint(0, 64, (length,), generator=torch.Generator().manual_seed(length)).tolist()
        for length in (21, 5, 33, 8)
    ]
