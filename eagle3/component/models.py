"""A target and a head small enough to be verified many times a second, whose acceptance a case can choose."""

from __future__ import annotations

import torch

from eagle3.checkpoint import load_head
from eagle3.config import HeadConfig
from eagle3.head import DraftHead
from eagle3.m3.attention import allocate_caches
from eagle3.m3.config import TargetConfig
from eagle3.m3.target import Target
from eagle3.m3.weights import random_weights
from eagle3.ops import Operators
from eagle3.pools import draft_geometry
from eagle3.published import random_tensors
from eagle3.step import Caches
from msa import PagedCache

BUCKET = 3
VOCABULARY, DRAFT_VOCABULARY = 64, 40
PAGES = 4  # in a row of the page table
# What attention and feed-forward layers add must not drown the token itself, which names its successor.
_DAMPED = ("o_proj.weight", "down_proj.weight")
_DAMPING = 0.1

TARGET = TargetConfig(
    dense_layers=1,
    sparse_layers=2,
    hidden_size=64,
    q_heads=4,
    kv_heads=2,
    head_dim=32,
    rotary_dim=16,
    intermediate_size=48,
    vocab_size=VOCABULARY,
    page_size=16,
    top_k=2,
    capture_layers=(0, 1, 2),
    max_seq_len=16 * PAGES,
)
HEAD = HeadConfig(
    hidden_size=64,
    intermediate_size=48,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    vocab_size=VOCABULARY,
    draft_vocab_size=DRAFT_VOCABULARY,
    target_hidden_size=64,
    max_position_embeddings=16 * PAGES,
    dtype=torch.float32,
)


class Models:
    """Target, head and caches for a bucket.

    The target's next token is the successor of the last one, so drafts can be made that it keeps or does not; its
    hidden states depend on everything in its caches nonetheless. The head's weights are random.

    Args:
        device: where everything lives.
        kernels: of operators and attention.

    Attributes:
        target, head: the models.
        caches: for `BUCKET` requests.
        kernels: as given.
    """

    def __init__(self, device: torch.device, kernels: str) -> None:
        self.kernels = kernels
        weights = random_weights(TARGET, 1, "cpu")
        for name in weights:
            if name.endswith(_DAMPED):
                weights[name] = weights[name] * _DAMPING
        weights["norm.weight"] = torch.ones_like(weights["norm.weight"])
        # Row v is the embedding of its predecessor.
        weights["lm_head.weight"] = weights["embed_tokens.weight"].roll(1, 0)
        operators = Operators(kernels)
        self.target = Target(TARGET, {name: tensor.to(device) for name, tensor in weights.items()}, operators)
        loaded = load_head(random_tensors(HEAD, 3), HEAD, device=device)
        self.head = DraftHead(HEAD, loaded.weights, loaded.embed, loaded.lm_head, operators)
        geometry = TARGET.geometry(max_batch=BUCKET, num_pages=BUCKET * PAGES, dtype=torch.float32)
        of_draft = draft_geometry(self.head, TARGET, geometry, BUCKET * PAGES)
        self.caches = Caches(
            geometry,
            allocate_caches(TARGET, geometry, device),
            of_draft,
            PagedCache.allocate(of_draft, device, sparse=False),
        )


def successors(token: int, count: int) -> list[int]:
    """What the target says behind ``token``, ``count`` tokens."""
    return [(token + step) % VOCABULARY for step in range(1, count + 1)]
