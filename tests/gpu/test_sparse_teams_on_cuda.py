"""Rows that walk their pages together say bit for bit what they say alone: company is a matter of speed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType

import pytest
import torch

triton = pytest.importorskip("triton", reason="the kernels need triton, which is not installed")
sparse_gqa = import_module("msa.ops.triton.sparse_gqa")
sparse_teams = import_module("msa.ops.triton.sparse_teams")
stream_softmax = import_module("msa.ops.triton.stream_softmax")
page_stream = import_module("msa.ops.triton.page_stream")
team_walk = import_module("msa.ops.triton.team_walk")
Partials = import_module("msa.ops.triton.partials").Partials

# On and around a page's end, in the first page, none at all, and long lists.
ENDS = (130, 1024, 3, 2561, 8192, 2, 1, 0, 128, 129, 131, 132, 2048, 2049, 2051, 1100, 1027, 256, 259, 7000)
PAGES, TOP_K, SIDE = 64, 16, 128
NAN, INF = float("nan"), float("inf")
# Sizes whose programs walk whole lists: KV heads, requests, query heads of each KV head, query tokens.
SIZES = [(4, 9, 16, 4), (1, 20, 16, 4), (1, 20, 8, 8), (8, 5, 4, 4)]


@dataclass
class Step:
    """Requests that end at `ENDS`; NaN in every slot behind them, ``last`` in some values of their last two tokens.

    Args:
        alike: "same" if the rows of a request select the same pages, "random" if each draws its own, "mixed" by request.
        apart: how many tokens the second row of a request stands behind its place.
    """

    kv_heads: int
    batch: int
    group: int
    qo_len: int
    alike: str
    last: float | None = None
    dtype: torch.dtype = torch.bfloat16
    apart: int = 0
    given: tuple = field(init=False)

    def __post_init__(self) -> None:
        draw = torch.Generator("cuda").manual_seed(5)
        shape = (self.batch * PAGES, self.kv_heads, SIDE, SIDE)
        k, v = (torch.randn(shape, generator=draw, device="cuda").to(self.dtype) for _ in range(2))
        self.rows = self.batch * self.qo_len
        q = torch.randn(self.rows, self.kv_heads * self.group, SIDE, generator=draw, device="cuda").to(self.dtype)
        ends = torch.tensor([ENDS[request % len(ENDS)] for request in range(self.batch)], device="cuda")
        table = torch.randperm(self.batch * PAGES, generator=draw, device="cuda").view(self.batch, PAGES).int()
        for request, end in enumerate(ends.tolist()):
            for page in range(end // SIDE, PAGES):
                for cache in (k, v):
                    cache[table[request, page], :, max(end - page * SIDE, 0) :] = NAN
            for back in (1, 2) if self.last is not None and end > 2 else ():
                token = end - back
                v[table[request, token // SIDE], :, token % SIDE, back::3] = self.last
        offsets = ends[:, None] - self.qo_len + torch.arange(self.qo_len, device="cuda")
        offsets[:, 1] -= self.apart
        ids = self.lists(draw, ends)
        requests = torch.arange(self.batch, device="cuda").repeat_interleave(self.qo_len)
        self.out = torch.empty_like(q)
        flat = offsets.clamp(min=-1).int().flatten()
        self.given = (self.out, q, k, v, ids, table, requests, ends.int(), flat, SIDE**-0.5)
        self.partials = Partials(self.rows, self.kv_heads * self.group, TOP_K, SIDE, "cuda")

    def lists(self, draw: torch.Generator, ends: torch.Tensor) -> torch.Tensor:
        """The page of the request's last token and others at random, ascending, then -1."""
        keys = torch.rand(self.batch, self.qo_len, self.kv_heads, PAGES, generator=draw, device="cuda")
        together = {"same": slice(None), "mixed": slice(0, None, 2), "random": slice(0, 0)}[self.alike]
        keys[together] = keys[together, :1].expand_as(keys[together])
        last = ((ends.clamp(min=1) - 1) // SIDE)[:, None, None, None]
        page = torch.arange(PAGES, device="cuda")
        keys = torch.where(page == last, 2.0, torch.where(page > last, -1.0, keys))
        best = keys.topk(TOP_K, -1)
        ids = torch.where(best.values >= 0, best.indices, PAGES).sort(-1).values
        return torch.where(ids == PAGES, -1, ids).int().reshape(self.rows, self.kv_heads, TOP_K).contiguous()

    def poison(self) -> None:
        """NaN where nothing may be read; among peaks it would say that a line has its result."""
        for tensor in (self.out, self.partials.norms, self.partials.totals):
            tensor.fill_(NAN)
        self.partials.peaks.fill_(1.0)

    def answer(self) -> torch.Tensor:
        """Bits of the attention, int16 [T, Hq, D]; poison in the output and the workspace before it."""
        self.poison()
        sparse_gqa.sparse_gqa(*self.given, partials=self.partials)
        return self.out.view(torch.int16).clone()


def share_out(monkeypatch: pytest.MonkeyPatch, walkers: int) -> None:
    """Have ``walkers`` programs share a list, whatever the sizes."""
    plan = sparse_teams.Plan(walkers, 2 if walkers == 1 else 3, 2, 3)
    monkeypatch.setattr(sparse_teams.Plan, "of", classmethod(lambda cls, rows, kv_heads: plan))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("walkers", [1, sparse_teams.TEAM])
def test_company_changes_no_bit(monkeypatch, sizes, walkers):
    share_out(monkeypatch, walkers)
    taken = []
    attend = sparse_teams.attend_teams
    monkeypatch.setattr(sparse_teams, "attend_teams", lambda *given: (taken.append(1), attend(*given)))
    for alike in ("same", "mixed", "random"):
        for last in (None, NAN, INF, -INF):
            step = Step(*sizes, alike, last)
            together = step.answer()
            assert len(taken) == 1, "the kernel for teams was not launched"
            with monkeypatch.context() as patch:
                patch.setattr(sparse_teams, "takes", lambda *_: False)
                alone = step.answer()
            taken.clear()
            different = (together != alone).flatten(1).any(1).nonzero().flatten().tolist()
            assert different == [], f"{alike}, {last}: rows {different}"
            assert bool(step.out.isnan().any()) is (last is not None), "a live value did not reach its rows"


def test_rows_that_do_not_follow_each_other_keep_what_they_do_not_see_out(monkeypatch):
    step = Step(*SIZES[1], "same", NAN, apart=40)
    together = step.answer()
    monkeypatch.setattr(sparse_teams, "takes", lambda *_: False)
    assert torch.equal(step.answer(), together)
    second = step.out.view(step.batch, step.qo_len, -1)[:, 1]
    assert bool(second[torch.tensor(ENDS[: step.batch], device="cuda") > 300].isfinite().all())


# What a kernel for teams may get wrong: a function, what it says, and what it says then; and how many share a list.
DEFECTS = {
    "a token behind a row": (stream_softmax, "team_softmax", "< seen[:, None]", "<= seen[:, None]", 1),
    "what lies behind the last token": (stream_softmax, "_clear", "row < most, held", "row < P, held", 1),
    "values that are not finite": (stream_softmax, "_clear", ">= INFINITY", "> 0x7FFF", 1),
    "sums of weights": (stream_softmax, "_sums", "mma_v2(left, ones,", "mma_v2(left, ones + ones,", 1),
    "the order of pages": (
        team_walk,
        "walk_together",
        "fold(peak, norm, total, more_peak, more_norm, more_total, True)\n        if (behind",
        "fold(more_peak, more_norm, more_total, peak, norm, total, True)\n        if (behind",
        1,
    ),
    "the peak of the nodes": (team_walk, "walk_together", "sum_peaks.store(peak)", "sum_peaks.store(peak + 1.0)", 1),
    "the sum of the nodes": (team_walk, "walk_together", "if node > 0:", "if node > 1:", 1),
    "which part a node is": (team_walk, "walk_together", "start // NODE", "start // NODE * 0", 4),
    "rows that are void": (team_walk, "walk_together", "return void > 0", "return void > 1", 4),
    "lists that differ": (sparse_teams, "_attend_teams", "(lists != ids[None, :])", "(lists < 0)", 1),
    "two pages seen in part": (sparse_teams, "_attend_teams", "((parts & (parts - 1)) == 0)", "(parts >= 0)", 1),
    "the first page": (sparse_teams, "_attend_teams", "(ids == 0)", "(ids < 0)", 1),
    "that a row has its result": (
        sparse_teams,
        "_attend_teams",
        "store_answered(peaks, head * NODES, real)",
        "pass",
        4,
    ),
    "where pages lie": (page_stream, "_ask", "first - 1, 0)", "first, 0)", 1),
}


def plant(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, right: str, wrong: str) -> None:
    """Have a device function say ``wrong``, and everything that calls it compiled anew, now and when it is put back."""
    function = getattr(module, name)
    assert function.src.count(right) == 1, f"{name} does not say {right!r} once"
    monkeypatch.setattr(function, "_src", function.src.replace(right, wrong))
    for part in (page_stream, stream_softmax, team_walk, sparse_teams):
        for each in vars(part).values():
            if isinstance(each, triton.JITFunction):
                monkeypatch.setattr(each, "hash", None)
    monkeypatch.setattr(
        sparse_teams._attend_teams, "device_caches", defaultdict(sparse_teams._attend_teams.create_binder)
    )


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_of_the_kernel_changes_bits(monkeypatch, defect):
    *where, walkers = DEFECTS[defect]
    share_out(monkeypatch, walkers)
    steps = [Step(*SIZES[1], alike, last) for alike in ("same", "random") for last in (None, INF)]
    right = [step.answer() for step in steps]
    plant(monkeypatch, *where)
    assert not all(torch.equal(step.answer(), before) for step, before in zip(steps, right, strict=True))


def test_company_changes_no_bit_in_fp16():
    step = Step(*SIZES[1], "mixed", dtype=torch.float16)
    together = step.answer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse_teams, "takes", lambda *_: False)
        assert torch.equal(step.answer(), together)


def test_a_captured_step_follows_lists_that_begin_and_cease_to_agree():
    """One graph, replayed with lists that agree, that differ, and that agree in some requests only."""
    lists, expected = {}, {}
    for alike in ("same", "random", "mixed"):
        step = Step(*SIZES[0], alike)
        lists[alike], expected[alike] = step.given[4].clone(), step.answer()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sparse_gqa.sparse_gqa(*step.given, partials=step.partials)
    for alike in ("same", "random", "mixed", "same"):
        step.given[4].copy_(lists[alike])
        step.poison()
        graph.replay()
        assert torch.equal(step.out.view(torch.int16), expected[alike]), alike
