"""Sparse and dense attention kernels: what may not reach a row does not, fp8 caches, and the order of a sum.

On a machine with a GPU these run there; elsewhere `test_triton_in_a_child` runs this module in Triton's interpreter.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

import pytest
import torch

from msa import ops as portable
from msa import reference

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("no GPU; test_triton_in_a_child runs these in Triton's interpreter", allow_module_level=True)
kernels = pytest.importorskip("msa.ops.triton", reason="the kernels need triton, which is not installed")
sparse_gqa = pytest.importorskip("msa.ops.triton.sparse_gqa", reason="the kernels need triton, which is not installed")
dense_attention = pytest.importorskip("msa.ops.triton.dense_attention", reason="the kernels need triton")
Partials = pytest.importorskip(
    "msa.ops.triton.partials", reason="the kernels need triton, which is not installed"
).Partials

torch.set_num_threads(1)
DEVICE = "cpu" if INTERPRETED else "cuda"
NAN = float("nan")
DIM, PAGE, WIDTH = 32, 16, 24


@dataclass
class Case:
    """One request of ``length`` tokens whose rows select pages by hand; NaN in every slot that no row sees."""

    length: int
    lists: list[list[int]]
    group: int = 4
    top_k: int = 10
    out: torch.dtype | None = None
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        draw = torch.Generator().manual_seed(self.length)
        self.qo_len = len(self.lists)
        self.table = torch.randperm(WIDTH, generator=draw).view(1, WIDTH).int()
        self.k, self.v = (torch.randn(WIDTH + 1, 1, PAGE, DIM, generator=draw) for _ in range(2))
        for position in range(self.length, WIDTH * PAGE):
            page = self.table[0, position // PAGE]
            self.k[page, :, position % PAGE] = self.v[page, :, position % PAGE] = NAN
        self.q = torch.randn(self.qo_len, self.group, DIM, generator=draw)
        self.q, self.k, self.v = (tensor.to(self.dtype) for tensor in (self.q, self.k, self.v))
        self.ids = torch.full((self.qo_len, 1, self.top_k), -1, dtype=torch.int32)
        for row, pages in enumerate(self.lists):
            self.ids[row, 0, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
        self.kv_lens = torch.tensor([self.length], dtype=torch.int32)
        self.offsets = torch.arange(self.qo_len, dtype=torch.int32) + (self.length - self.qo_len)
        self.partials = Partials(self.qo_len, self.group, 33, DIM, DEVICE)

    def sparse(self, call=kernels.sparse_gqa, **scales: float) -> torch.Tensor:
        requests = torch.zeros(self.qo_len, dtype=torch.int64)
        given = (self.q, self.k, self.v, self.ids, self.table, requests, self.kv_lens, self.offsets)
        return self.attend(call, [tensor.to(DEVICE) for tensor in given], scales)

    def dense(self, call=kernels.dense_attention, **scales: float) -> torch.Tensor:
        given = (self.q, self.k, self.v, self.table, self.kv_lens)
        return self.attend(call, [*(tensor.to(DEVICE) for tensor in given), self.qo_len], scales)

    def attend(self, call, given, scales) -> torch.Tensor:
        out = torch.full(self.q.shape, NAN, device=DEVICE, dtype=self.out or self.q.dtype)
        if call.__module__.startswith("msa.ops.triton"):
            self.partials.totals.fill_(NAN)
            self.partials.norms.fill_(NAN)
            scales["partials"] = self.partials
        call(out, *given, DIM**-0.5, **scales)
        return out.cpu()

    def right(self, row: int, scale: float = 1.0, pages: list[int] | None = None) -> torch.Tensor:
        """Float64 attention [G, D] of a row over some pages, all that it sees by default."""
        extent = int(self.offsets[row]) + 1
        tokens = [
            reference.tokens(cache.float() * scale, self.table[0].tolist(), extent) if extent > 0 else cache[:0, :, 0]
            for cache in (self.k, self.v)
        ]
        ids = torch.tensor([list(range(WIDTH)) if pages is None else pages or [-1]])
        return reference.sparse_attention(self.q[row].float(), *tokens, ids, PAGE, DIM**-0.5)


DIFFERENT = [[0, 1, 2, 3, 4, 5, 6, 7, 8, 20], [1, 3, 5, 7, 9, 11, 13, 20], [0, 20], [2, 4, 6, 20, 21]]


@pytest.mark.parametrize(
    ("length", "lists"),
    [
        (338, DIFFERENT),
        (336, [[0, 1, 5, 19, 20]]),
        (20, [[0], [0], [0, 1], [0, 1], [0, 1]]),
        (2, [[], [0], [0]]),
        (0, [[]]),
    ],
    ids=["crossing", "full-last-page", "short", "below-q", "empty"],
)
def test_each_row_attends_to_its_own_pages_only(length, lists):
    case = Case(length, lists)
    out = case.sparse()
    for row, pages in enumerate(lists):
        assert torch.allclose(out[row].double(), case.right(row, pages=pages), rtol=0, atol=5e-6)
    assert torch.allclose(out, case.sparse(portable.sparse_gqa), rtol=0, atol=5e-6)
    empty = [row for row, pages in enumerate(lists) if not pages]
    assert bool((out[empty] == 0).all()) and not bool(out[empty].signbit().any())


@pytest.mark.parametrize("tensor", ["k", "v"])
@pytest.mark.parametrize("attend", ["sparse", "dense"])
def test_a_live_nan_reaches_exactly_the_rows_that_attend_to_it(tensor, attend):
    case = Case(338, DIFFERENT)
    clean = getattr(case, attend)()
    for position, rows in ((9 * PAGE + 3, [1]), (336, [2, 3]), (337, [3]), (5 * PAGE, [0, 1])):
        case = Case(338, DIFFERENT if position < 336 else [[*pages, 21][-case.top_k :] for pages in DIFFERENT])
        getattr(case, tensor)[case.table[0, position // PAGE], 0, position % PAGE] = NAN
        touched = getattr(case, attend)().isnan().flatten(1).any(1).tolist()
        if attend == "dense":
            rows = [row for row in range(4) if int(case.offsets[row]) >= position]
        assert touched == [row in rows for row in range(4)], position
    assert not bool(clean.isnan().any())


@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul")
@pytest.mark.parametrize("value", [NAN, float("inf")])
@pytest.mark.parametrize("attend", ["sparse", "dense"])
def test_a_value_that_only_the_last_row_sees_changes_no_bit_of_the_rows_before_it(attend, value):
    lists = [[*pages, 21][-Case.top_k :] for pages in DIFFERENT]
    plain, strange = Case(338, lists), Case(338, lists)
    strange.v[strange.table[0, 337 // PAGE], 0, 337 % PAGE] = value
    outs = [getattr(case, attend)() for case in (plain, strange)]
    assert torch.equal(outs[0][:3], outs[1][:3])
    assert not bool(outs[1][3].isfinite().any())


@pytest.mark.parametrize("entries", [1, sparse_gqa.NODE, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_split_of_the_work_gives_the_answer(monkeypatch, entries, dtype):
    plain = Case(338, DIFFERENT, dtype=dtype).sparse()
    monkeypatch.setattr(sparse_gqa, "entries_of", lambda rows, kv_heads, top_k: min(entries, top_k))
    case = Case(338, DIFFERENT, dtype=dtype)
    out = case.sparse()
    loose = dtype is torch.bfloat16
    for row, pages in enumerate(DIFFERENT):
        assert torch.allclose(out[row].double(), case.right(row, pages=pages), rtol=0, atol=3e-2 if loose else 5e-6)
    # A function of numpy has other bits in another place of a vector; a GPU's has not.
    assert torch.equal(out, plain) if not INTERPRETED else torch.allclose(out, plain, rtol=0, atol=1e-6)


@pytest.mark.parametrize("entries", [1, sparse_gqa.NODE, 16])
@pytest.mark.parametrize(("ones", "right"), [((4, 5), 2.0**24 + 2), ((4, 8), 2.0**24)], ids=["a-node", "two-nodes"])
def test_a_list_is_added_in_nodes(monkeypatch, ones, right, entries):
    """Expected: by hand. Beside 2**24 a 1 is lost, and 2 is not: two ones of one node come to 2 first."""
    monkeypatch.setattr(sparse_gqa, "entries_of", lambda rows, kv_heads, top_k: entries)
    case = Case(16 * PAGE, [list(range(16))], top_k=16)
    case.q.zero_()
    case.v.zero_()
    for page, value in ((0, 2.0**24), *((page, 1.0) for page in ones)):
        case.v[case.table[0, page], 0, 0] = value
    assert (case.sparse() * 16 * PAGE).unique().tolist() == [right]


def test_a_list_that_names_a_page_twice_does_not_lead_a_walk_out_of_the_cache(monkeypatch):
    """No list may; expected: the page counts once."""
    monkeypatch.setattr(sparse_gqa, "entries_of", lambda rows, kv_heads, top_k: top_k)
    case = Case(338, [[1, 3, 3, 3, 7, 20, 20]])
    assert torch.allclose(case.sparse()[0].double(), case.right(0, pages=[1, 3, 7, 20]), rtol=0, atol=5e-6)


def test_programs_walk_what_keeps_them_running_at_one_time(monkeypatch):
    """Expected: by hand, for lists of 16 pages: 264 programs at most, two on each multiprocessor."""
    monkeypatch.setattr(sparse_gqa, "interpreted", lambda kernel: False)
    steps = {1: 1, 16: 1, 17: 4, 66: 4, 67: 16, 1024: 16}
    assert {lists: sparse_gqa.entries_of(lists, 1, 16) for lists in steps} == steps
    assert sparse_gqa.entries_of(4, 8, 16) == 4
    assert [sparse_gqa.entries_of(50, 1, top_k) for top_k in (2, 6, 12, 40)] == [1, 4, 4, 40]


@pytest.mark.parametrize(
    ("node", "right"), [(1, 2.0**24), (4, 2.0**24 + 2), (8, 2.0**24)], ids=["one-by-one", "nodes", "in-order"]
)
def test_parts_are_added_in_nodes(node, right):
    """Expected: by hand. 1 is lost beside 2**24, as often as it comes; 2 is not."""
    merge = pytest.importorskip("msa.ops.triton.merge").merge
    values = [2.0**24, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    shape = (1, 1, len(values))
    totals = torch.tensor(values).view(*shape, 1).expand(*shape, DIM).contiguous().to(DEVICE)
    norms = torch.tensor([1.0] + [0.0] * 7).view(shape).to(DEVICE)
    out = torch.full((1, 1, DIM), NAN, device=DEVICE)
    merge(out, torch.zeros(shape, device=DEVICE), norms, totals, 1.0, False, node=node)
    assert out.unique().tolist() == [right]


def test_a_merge_leaves_lines_that_have_their_result():
    """Expected: by hand. Of two groups of four heads the second says that it is answered."""
    merge = pytest.importorskip("msa.ops.triton.merge").merge
    shape = (1, 8, 2)
    peaks, norms = torch.zeros(shape), torch.ones(shape)
    peaks[:, 4:, 0] = NAN
    totals = torch.full((*shape, DIM), 3.0)
    totals[:, 4:] = NAN
    out = torch.full((1, 8, DIM), 7.0, device=DEVICE)
    merge(out, *(part.to(DEVICE) for part in (peaks, norms, totals)), 1.0, False, node=1, group=4)
    assert [head.unique().tolist() for head in out[0].cpu()] == [[3.0]] * 4 + [[7.0]] * 4


def test_the_pages_of_other_rows_change_no_bit():
    lists = [DIFFERENT[1]] * 4
    shared = Case(338, [*lists[:3], [1, 3, 5, 7, 9, 11, 13, 20]]).sparse()
    mixed = Case(338, [DIFFERENT[0], DIFFERENT[1], DIFFERENT[2], DIFFERENT[3]]).sparse()
    assert torch.equal(shared[1], mixed[1])


@pytest.mark.parametrize("length", [336, 338, 339], ids=["the-last-row-alone", "three-rows", "all-rows"])
def test_dense_rows_that_end_in_different_pages(length):
    """Page 20 is whole for the last rows; of 336 tokens, for the last one only."""
    case = Case(length, [[0]] * 4)
    out = case.dense()
    for row in range(4):
        assert torch.allclose(out[row].double(), case.right(row), rtol=0, atol=5e-6)


def test_dense_rows_whose_parts_are_of_different_lengths(monkeypatch):
    """Two rows see as many whole pages as parts of the least length hold, the next two see one more."""
    most = dense_attention.LEAST_PAGES * dense_attention.whole_parts()
    monkeypatch.setattr(sys.modules[__name__], "WIDTH", most + 2)
    case = Case(most * PAGE + PAGE + 1, [[0]] * 4)
    out = case.dense()
    for row in range(4):
        assert torch.allclose(out[row].double(), case.right(row), rtol=0, atol=5e-6)


def test_dense_attention_over_many_parts():
    case = Case(WIDTH * PAGE - 3, [[0]] * 2)
    out = case.dense()
    for row in range(2):
        assert torch.allclose(out[row].double(), case.right(row), rtol=0, atol=5e-6)
    narrow = Case(50, [[0]] * 3)
    wide = narrow.dense()
    narrow.table = narrow.table[:, :4]
    assert torch.equal(narrow.dense(), wide)


@pytest.mark.parametrize("attend", ["sparse", "dense"])
def test_fp8_caches_are_read_with_their_scales(attend):
    case = Case(338, DIFFERENT[:2])
    case.q = case.q.to(torch.bfloat16)
    for name in ("k", "v"):
        setattr(case, name, (getattr(case, name) * 2).to(torch.float8_e4m3fn))
    out = getattr(case, attend)(k_scale=0.5, v_scale=0.5)
    for row in range(2):
        pages = DIFFERENT[row] if attend == "sparse" else None
        # bf16 weights and output, which the interpreter rounds towards zero.
        assert torch.allclose(out[row].double(), case.right(row, 0.5, pages), rtol=0, atol=3e-2)


@pytest.mark.parametrize("attend", ["sparse", "dense"])
def test_rows_of_few_tokens_do_not_show_that_weights_are_bf16(attend):
    """Output in fp32, so that only the weights are rounded: 1e-3 and more if that stayed."""
    case = Case(5, [[0]] * 2, out=torch.float32)
    for name in ("q", "k", "v"):
        setattr(case, name, getattr(case, name).to(torch.bfloat16))
    out = getattr(case, attend)()
    for row in range(2):
        assert torch.allclose(out[row].double(), case.right(row, pages=[0]), rtol=0, atol=1e-4)


def test_fp8_index_keys_give_the_scores_of_their_values():
    draw = torch.Generator().manual_seed(0)
    keys = torch.randn(4, 1, PAGE, DIM, generator=draw).to(torch.float8_e4m3fn)
    query = torch.randn(2, 2, DIM, generator=draw).to(torch.bfloat16)
    scores = torch.zeros(2, 2, 3, device=DEVICE)
    table, lengths = torch.tensor([[2, 0, 1]], dtype=torch.int32), torch.tensor([40], dtype=torch.int32)
    kernels.proxy_score(scores, query.to(DEVICE), keys.to(DEVICE), table.to(DEVICE), lengths.to(DEVICE), 2)
    tokens = reference.tokens(keys.float(), [2, 0, 1], 40)[:, 0]
    for row in range(2):
        right = reference.page_scores(query[row].float(), tokens[: 39 + row], PAGE)
        assert torch.allclose(scores[:, row].cpu().double(), right, rtol=0, atol=1e-5)
