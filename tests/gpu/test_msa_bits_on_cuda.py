"""The bits of a row at MiniMax-M3's sizes: the same at any number of query tokens, in any company, under any split."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

from msa import DecodeDriver, Geometry, PagedCache
from msa.geometry import FP8

# Rows that end in different pages, on a page's last token, in their first page, and with pages enough for long parts.
LENGTHS = (130, 1024, 3, 2561, 20_000)
QO_LEN = 4
CAPACITY = 160


class Subject:
    """Five requests in one cache, and the queries of their last four tokens."""

    def __init__(self, ways: int, stored: torch.dtype | None) -> None:
        draw = torch.Generator("cuda").manual_seed(11)
        pages = len(LENGTHS) * CAPACITY
        self.geometry = Geometry.m3(
            ways, max_batch=len(LENGTHS), max_pages=CAPACITY, num_pages=pages, kv_dtype=stored, index_dtype=stored
        )
        self.cache = PagedCache.allocate(self.geometry, "cuda")
        for tensor in (self.cache.k, self.cache.v, self.cache.index_k):
            assert tensor is not None
            tensor.copy_(torch.randn(tensor.shape, generator=draw, device="cuda"))
        self.table = torch.randperm(pages, generator=torch.Generator().manual_seed(3)).view(len(LENGTHS), -1)

        def queries(heads: int) -> torch.Tensor:
            shape = (len(LENGTHS), QO_LEN, heads, self.geometry.head_dim)
            return torch.randn(shape, generator=draw, device="cuda").to(self.geometry.dtype)

        self.q, self.index_q = queries(self.geometry.q_heads), queries(self.geometry.index_heads)

    def answers(self, requests: list[int], tokens: slice) -> dict[str, torch.Tensor]:
        """What a step over some requests' tokens says, each [B, Q, ...]: ids, scores of valid pages, attention."""
        qo_len = len(range(*tokens.indices(QO_LEN)))
        behind = QO_LEN - tokens.stop
        driver = DecodeDriver(self.geometry, len(requests), qo_len, "cuda", kernels="triton")
        lengths = [max(LENGTHS[request] - behind, 0) for request in requests]
        driver.stage(lengths, self.table[requests].tolist())
        q, index_q = (part[requests, tokens].flatten(0, 1).contiguous() for part in (self.q, self.index_q))
        driver.scores.fill_(float("nan"))
        driver.plan()
        driver.score(index_q, self.cache)
        driver.select()
        driver.attend_sparse(q, self.cache)
        dense = torch.empty_like(q)
        driver.attend_dense(q, self.cache, dense)
        scores = driver.scores[:, : len(requests) * qo_len].transpose(0, 1).contiguous()
        seen = torch.arange(scores.shape[2], device="cuda") < driver.ladder.valid_pages[: scores.shape[0], None, None]
        found = {"ids": driver.page_ids, "sparse": driver.out, "dense": dense, "scores": scores.masked_fill(~seen, 0.0)}
        return {
            name: rows[: len(requests) * qo_len].view(len(requests), qo_len, *rows.shape[1:]).clone()
            for name, rows in found.items()
        }


def differing(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> list[str]:
    """Names of what has other bits."""
    kinds = {2: torch.int16, 4: torch.int32}
    return [
        name
        for name, rows in some.items()
        if not torch.equal(rows.view(kinds[rows.element_size()]), others[name].view(kinds[rows.element_size()]))
    ]


@pytest.fixture(
    params=[(4, None), (1, None), (8, None), (4, FP8)], ids=["16/1", "64/4", "8/1", "16/1-fp8"], scope="module"
)
def subject(request: pytest.FixtureRequest) -> Subject:
    return Subject(*request.param)


def test_neither_company_nor_the_number_of_query_tokens_changes_a_bit(subject: Subject) -> None:
    everyone = list(range(len(LENGTHS)))
    together = subject.answers(everyone, slice(0, QO_LEN))
    for request in everyone:
        mine = {name: rows[request : request + 1] for name, rows in together.items()}
        assert differing(subject.answers([request], slice(0, QO_LEN)), mine) == [], f"request {request} alone"
    for tokens in (slice(0, 1), slice(1, 2), slice(2, 3), slice(3, 4), slice(0, 2), slice(1, 4)):
        theirs = {name: rows[:, tokens].contiguous() for name, rows in together.items()}
        assert differing(subject.answers(everyone, tokens), theirs) == [], f"query tokens {tokens}"


def test_no_split_of_the_work_changes_a_bit(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    sparse_gqa = import_module("msa.ops.triton.sparse_gqa")
    everyone = list(range(len(LENGTHS)))
    plain = subject.answers(everyone, slice(0, QO_LEN))
    for entries in (1, sparse_gqa.NODE, subject.geometry.top_k):
        monkeypatch.setattr(sparse_gqa, "entries_of", lambda *_, entries=entries: entries)
        assert differing(subject.answers(everyone, slice(0, QO_LEN)), plain) == [], entries
