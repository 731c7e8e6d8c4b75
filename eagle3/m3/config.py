"""Sizes of an M3-shaped target, and the msa geometry that follows from them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from eagle3.m3.errors import TargetConfigRefused
from msa import Geometry

MODEL_TYPE = "eagle3_m3"
BYTES = 256
PAD, BEGIN, END = 256, 257, 258  # behind the bytes; 259 is spare


@dataclass(frozen=True)
class TargetConfig:
    """Sizes of a target; the defaults are the byte-level model of this repository.

    Args:
        dense_layers, sparse_layers: dense layers come first.
        hidden_size: H.
        q_heads, kv_heads: Hq and Hkv; index heads are as many as KV heads.
        head_dim: D; ``q_heads * head_dim`` may differ from H.
        rotary_dim: leading dims of a head that rotate, even; M3 rotates half of them.
        intermediate_size: width of the feed-forward layers.
        vocab_size: V.
        page_size: P, tokens per page and sparse block.
        top_k: K, pages that a row of a sparse layer attends to.
        capture_layers: layers whose inputs the draft head sees, ascending; by default 2, N // 2 and N - 3 of N layers
            (``SafeAILab/EAGLE eagle/model/modeling_llama_kv.py``).
        rms_norm_eps, rope_theta: as usual.
        max_seq_len: longest sequence that positions are tabulated for, tokens.

    Raises:
        TargetConfigRefused: some of them do not fit together.
    """

    dense_layers: int = 3
    sparse_layers: int = 5
    hidden_size: int = 256
    q_heads: int = 8
    kv_heads: int = 2
    head_dim: int = 32
    rotary_dim: int = 16
    # 704 would be the usual 8/3 of H; this width leaves room for a head of 2.3 MB within 12 MB in bf16.
    intermediate_size: int = 512
    vocab_size: int = 260
    page_size: int = 16
    top_k: int = 4
    capture_layers: tuple[int, ...] = ()
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_seq_len: int = 2048

    def __post_init__(self) -> None:
        if not self.capture_layers:
            object.__setattr__(self, "capture_layers", default_capture_layers(self.layers))
        object.__setattr__(self, "capture_layers", tuple(self.capture_layers))
        objections = [words for holds, words in self._checks() if not holds]
        if objections:
            raise TargetConfigRefused(f"no such target can be built: {'; '.join(objections)}")

    @staticmethod
    def tiny() -> TargetConfig:
        """The same structure in 32 dimensions with pages of 8 tokens, for tests."""
        return TargetConfig(
            hidden_size=32,
            q_heads=4,
            kv_heads=2,
            head_dim=8,
            rotary_dim=4,
            intermediate_size=48,
            page_size=8,
            top_k=2,
            max_seq_len=256,
        )

    @staticmethod
    def m3_width() -> TargetConfig:
        """Eight layers of MiniMax-M3's width, one of four tensor-parallel shards: heads 16/1/1, a quarter of the MLP and
        of the vocabulary; pages of 128 tokens, top-k 16."""
        return TargetConfig(
            hidden_size=6144,
            q_heads=16,
            kv_heads=1,
            head_dim=128,
            rotary_dim=64,
            intermediate_size=12288 // 4,
            vocab_size=200064 // 4,
            page_size=128,
            top_k=16,
            rope_theta=5e6,
            max_seq_len=8192,
        )

    @property
    def layers(self) -> int:
        """N, layers in all."""
        return self.dense_layers + self.sparse_layers

    @property
    def captured_size(self) -> int:
        """Width of what the draft head sees of a token."""
        return len(self.capture_layers) * self.hidden_size

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer selects pages."""
        return layer >= self.dense_layers

    def geometry(
        self,
        *,
        max_batch: int,
        num_pages: int,
        max_seq_len: int | None = None,
        max_qo_len: int = 8,
        dtype: torch.dtype = torch.bfloat16,
    ) -> Geometry:
        """The msa geometry of this target for an engine of the given capacity.

        Args:
            max_batch: most requests in a batch.
            num_pages: pages of the pool.
            max_seq_len: longest sequence to serve, tokens; what positions are tabulated for by default.
            max_qo_len: most query tokens per request in a decode step.
            dtype: of queries, caches and outputs.

        Raises:
            GeometryError: it cannot be served.
            TargetConfigRefused: ``max_seq_len`` exceeds the tabulated positions.
        """
        longest = self.max_seq_len if max_seq_len is None else max_seq_len
        if longest > self.max_seq_len:
            raise TargetConfigRefused(f"max_seq_len {longest}, but positions end at {self.max_seq_len}; raise it there")
        return Geometry(
            q_heads=self.q_heads,
            kv_heads=self.kv_heads,
            index_heads=self.kv_heads,
            head_dim=self.head_dim,
            page_size=self.page_size,
            top_k=self.top_k,
            max_batch=max_batch,
            max_pages=-(-longest // self.page_size),
            num_pages=num_pages,
            max_seq_len=longest,
            max_qo_len=max_qo_len,
            dtype=dtype,
        )

    def save(self, path: Path) -> None:
        """The file holds the sizes as JSON."""
        words = {"model_type": MODEL_TYPE, **asdict(self), "capture_convention": "inputs"}
        path.write_text(json.dumps(words, indent=2) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: Path) -> TargetConfig:
        """The sizes in a file that `save` wrote.

        Raises:
            TargetConfigRefused: it is of another kind, has unknown fields, or its sizes do not fit together.
        """
        try:
            words: dict[str, Any] = dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise TargetConfigRefused(f"{path} is no JSON object: {error}") from error
        kind, convention = words.pop("model_type", None), words.pop("capture_convention", "inputs")
        if kind != MODEL_TYPE or convention != "inputs":
            raise TargetConfigRefused(
                f"{path}: model_type {kind!r} with capture_convention {convention!r}, expected {MODEL_TYPE!r} with 'inputs'"
            )
        unknown = sorted(words.keys() - {field.name for field in fields(TargetConfig)})
        if unknown:
            raise TargetConfigRefused(f"{path}: unknown fields {', '.join(unknown)}")
        return TargetConfig(**words)

    def _checks(self) -> tuple[tuple[bool, str], ...]:
        capture = self.capture_layers
        return (
            (self.dense_layers >= 0 and self.sparse_layers >= 0, "a number of layers is negative"),
            (self.kv_heads >= 1 and self.q_heads % self.kv_heads == 0, "kv_heads does not divide q_heads"),
            (self.head_dim % 8 == 0, f"head_dim {self.head_dim} is no multiple of 8"),
            (
                self.rotary_dim % 2 == 0 and 2 <= self.rotary_dim <= self.head_dim,
                f"rotary_dim {self.rotary_dim}, expected an even number up to head_dim",
            ),
            (min(self.hidden_size, self.intermediate_size, self.vocab_size) >= 1, "a width is below 1"),
            (self.max_seq_len >= 1, f"max_seq_len {self.max_seq_len}"),
            (
                len(capture) == 3 and list(capture) == sorted(set(capture)),
                f"capture_layers {list(capture)}, expected three in ascending order",
            ),
            (
                all(0 <= layer < self.layers for layer in capture),
                f"capture_layers {list(capture)} of layers 0..{self.layers - 1}",
            ),
        )


def default_capture_layers(layers: int) -> tuple[int, ...]:
    """The layers whose inputs an EAGLE-3 head sees unless its config says otherwise.

    Raises:
        TargetConfigRefused: the rule does not give three layers; name them.
    """
    capture = (2, layers // 2, layers - 3)
    if len(set(capture)) < 3 or list(capture) != sorted(capture):
        raise TargetConfigRefused(f"{layers} layers have no default capture layers; name three of them")
    return capture
