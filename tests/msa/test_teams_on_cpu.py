"""The kernel for teams of rows, run here as plain Python: what each row attends to, whoever walks with it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton.experimental.gluon.nvidia.hopper", reason="teams of rows need Triton's Gluon")

MODULES = [
    import_module(f"msa.ops.triton.{name}")
    for name in ("page_stream", "stream_softmax", "team_walk", "sparse_teams", "tile", "merge")
]
sparse_teams, merge = MODULES[3], MODULES[5]
PAGES, TOP_K, NODE, SIDE, GROUP, ROWS = 24, 16, 4, 128, 3, 4
NAN, INF = float("nan"), float("inf")


class Step:
    """A team of one request whose rows end at ``end`` and the three tokens before; NaN behind it.

    The second row ends ``apart`` tokens earlier than in its place. ``last`` stands in the last two tokens or, if there is such
    a distance, in the first one that the second row does not see.
    """

    def __init__(self, end: int, alike: str, last: float | None = None, apart: int = 0) -> None:
        draw = torch.Generator().manual_seed(end)
        k, v = (torch.randn(PAGES, SIDE, SIDE, generator=draw).bfloat16() for _ in range(2))
        self.q = torch.randn(ROWS, GROUP, SIDE, generator=draw).bfloat16()
        self.table = torch.randperm(PAGES, generator=draw).int()
        for page in range(end // SIDE, PAGES):
            for cache in (k, v):
                cache[self.table[page], max(end - page * SIDE, 0) :] = NAN
        self.ends = [end - ROWS + 1 + row - apart * (row == 1) for row in range(ROWS)]
        late = (self.ends[1],) if apart else (end - 1, end - 2)
        for token in late if last is not None else ():
            v[self.table[token // SIDE], token % SIDE, ::3] = last
        self.k, self.v, self.end = k, v, end
        lists = [self.drawn(draw) for _ in range(ROWS)]
        if alike == "some":
            lists = [sorted({*lists[0][:-5], *each[-5:]})[-TOP_K:] for each in lists]
        self.lists = [lists[0] if alike == "same" else each for each in lists]
        self.ids = torch.tensor([each + [-1] * (TOP_K - len(each)) for each in self.lists], dtype=torch.int32)

    def drawn(self, draw: torch.Generator) -> list[int]:
        """Pages in order, the last one among them."""
        last = max(self.end - 1, 0) // SIDE
        others = torch.randperm(last, generator=draw)[: TOP_K - 1].tolist() if last else []
        return sorted([*others, last])

    def right(self, row: int) -> torch.Tensor:
        """Float64 attention [G, D] of a row; zero if it sees nothing."""
        tokens = [
            (int(self.table[page]), token)
            for page in self.lists[row]
            for token in range(min(max(self.ends[row] - page * SIDE, 0), SIDE))
        ]
        if not tokens:
            return torch.zeros(GROUP, SIDE, dtype=torch.float64)
        pages, places = (torch.tensor(each) for each in zip(*tokens, strict=True))
        k, v = self.k[pages, places].double(), self.v[pages, places].double()
        return torch.softmax(self.q[row].double() @ k.T * SIDE**-0.5, 1) @ v

    def wrong(self, launch, pages_of, walkers: int) -> list[int]:
        """Rows that are not right: another number, or one that is not finite where it should be, or the other way."""
        out = self.answer(launch, pages_of, walkers).double()
        found = []
        for row in range(ROWS):
            right = self.right(row)
            finite = right.isfinite()
            close = torch.allclose(out[row][finite], right[finite], rtol=0, atol=2e-2)
            if not close or not torch.equal(out[row].isfinite(), finite):
                found.append(row)
        return found

    def answer(self, launch, pages_of, walkers: int) -> torch.Tensor:
        """[T, G, D] of the kernel, and of the merge behind it."""
        out = torch.full((ROWS, GROUP, SIDE), NAN)
        parts = walkers if walkers > 1 else 0
        peaks = torch.ones(ROWS, GROUP, max(parts, 1))
        norms, totals = torch.full_like(peaks, NAN), torch.full((*peaks.shape, SIDE), NAN)
        offsets = torch.tensor(self.ends, dtype=torch.int32) - 1
        keys, values = (pages_of(cache.view(-1, SIDE)) for cache in (self.k, self.v))
        scale = SIDE**-0.5 * 1.4426950408889634
        length = torch.tensor([self.end], dtype=torch.int32)
        ring = 2 if walkers == 1 else 3
        launch(
            sparse_teams._attend_teams, (ROWS, 1), out, peaks, norms, totals, self.q, keys, values, self.ids, self.table,
            length, offsets, PAGES, PAGES, scale, 1.0, Q=ROWS, KV_HEADS=1, G=GROUP, EACH=16, K=TOP_K, NODE=NODE, TEAM=ROWS,
            WALKERS=walkers, TEAM_RING=ring, ROW_RING=2, ROOM=3, P=SIDE, D=SIDE, PDL=False,
        )  # fmt: skip
        if parts:
            launch(
                merge._merge, (ROWS * GROUP, 1), out, peaks, norms, totals, 1.0, ROWS * GROUP, PARTS=parts, NODE=1, LINES=1,
                D=SIDE, BLOCK_D=SIDE, ANSWERED=True, PDL=False,
            )  # fmt: skip
        return out


@pytest.fixture
def harness(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    return import_module("gluon_on_cpu")


@pytest.mark.parametrize("walkers", [1, 4])
@pytest.mark.parametrize("alike", ["same", "some", "random"])
@pytest.mark.parametrize("end", [0, 3, 128, 130, 1024, 2049, 2051, 2700])
def test_a_row_attends_to_its_own_pages(monkeypatch, harness, end, alike, walkers):
    launch = harness.on_cpu(monkeypatch, MODULES)
    assert Step(end, alike).wrong(launch, harness.Pages, walkers) == []


@pytest.mark.parametrize("walkers", [1, 4])
@pytest.mark.parametrize("last", [NAN, INF, 500.0])
@pytest.mark.parametrize("end", [3, 130, 1026, 2049, 2700])
def test_the_last_tokens_reach_those_rows_that_see_them(monkeypatch, harness, end, last, walkers):
    """Of infinities and NaN as well as of values so large that the plants below cannot hide behind the tolerance."""
    launch = harness.on_cpu(monkeypatch, MODULES)
    assert Step(end, "same", last).wrong(launch, harness.Pages, walkers) == []


@pytest.mark.parametrize("walkers", [1, 4])
@pytest.mark.parametrize("last", [NAN, 500.0])
@pytest.mark.parametrize(("end", "apart"), [(2780, 40), (2700, 40), (2700, 200)], ids=["less", "nothing", "others"])
def test_rows_that_do_not_follow_each_other(monkeypatch, harness, end, apart, last, walkers):
    """They walk together where they see but one page in part, if one of them sees less of it than its place says, or nothing."""
    launch = harness.on_cpu(monkeypatch, MODULES)
    assert Step(end, "same", last, apart).wrong(launch, harness.Pages, walkers) == []


# A function, what it says, what it says then, and how many share a list.
DEFECTS = {
    "a token behind a row": ("team_softmax", "None, :] < seen", "None, :] <= seen", 1),
    "what lies behind the last token": ("_clear", "row < most, held", "row < P, held", 1),
    "values that are not finite": ("_clear", ">= INFINITY", "> 0x7FFF", 1),
    "sums of weights": ("_sums", "mma_v2(left, ones,", "mma_v2(left, ones + ones,", 1),
    "the peak of the nodes": ("walk_together", "sum_peaks.store(peak)", "sum_peaks.store(peak + 1.0)", 1),
    "the sum of the nodes": ("walk_together", "if node > 0:", "if node > 1:", 1),
    "a node's end": ("walk_together", "node * NODE + NODE, count", "node * NODE + NODE - 1, count", 1),
    "which part a node is": ("walk_together", "start // NODE", "start // NODE * 0", 4),
    "rows that are void": ("walk_together", "return void > 0", "return void > 1", 4),
    "lists that differ": ("_attend_teams", "(lists != ids[None, :])", "(lists < 0)", 1),
    "two pages seen in part": ("_attend_teams", "((parts & (parts - 1)) == 0)", "(parts >= 0)", 1),
    "that a row has its result": ("_attend_teams", "store_answered(peaks, head * NODES, real)", "pass", 4),
    "where pages lie": ("_ask", "first - 1, 0)", "first, 0)", 1),
    "what is asked for": ("ask_behind", "(RING % 2 == 0) == VALUES", "(RING % 2 == 1) == VALUES", 4),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_of_the_kernel_is_seen(monkeypatch, harness, defect):
    *where, walkers = DEFECTS[defect]
    # Of 2049 tokens rows see two pages in part.
    steps = [Step(end, "same", last) for end in (2700, 2049) for last in (500.0, INF)] + [Step(2700, "random")]
    harness.plant(monkeypatch, MODULES, *where)
    launch = harness.on_cpu(monkeypatch, MODULES)
    try:
        found = [row for step in steps for row in step.wrong(launch, harness.Pages, walkers)]
    except harness.Refused:
        return
    assert found
