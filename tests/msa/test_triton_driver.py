"""The driver on Triton kernels: right, equal to the portable one where that is exact, and the same bits anywhere.

On a machine with a GPU these run there; elsewhere `test_triton_in_a_child` runs this module in Triton's interpreter.
"""

from __future__ import annotations

import os

import pytest
import torch

from msa import DecodeDriver, EagerBatch, FlatTable, Geometry, OverlapLengths, PagedCache, answer
from msa.errors import CapacityExceeded, GeometryError
from msa.scene import Scene

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("no GPU; test_triton_in_a_child runs these in Triton's interpreter", allow_module_level=True)
Partials = pytest.importorskip(
    "msa.ops.triton.partials", reason="the kernels need triton, which is not installed"
).Partials

torch.set_num_threads(1)
DEVICE = "cpu" if INTERPRETED else "cuda"
NAN = float("nan")
NAMES = ("k_cache", "v_cache", "index_cache")


def sizes(bucket: int, width: int = 10, **changes) -> Geometry:
    values = dict(q_heads=8, kv_heads=2, index_heads=2, head_dim=32, page_size=16, top_k=6, dtype=torch.float32)
    values.update(max_batch=bucket, max_pages=width, num_pages=80, max_seq_len=width * 16)
    return Geometry(**{**values, **changes})


class Step:
    """Requests placed in a bucket, with NaN wherever no token is, and what a driver makes of them.

    A request's tokens follow from its name and position alone, wherever it is placed.
    """

    def __init__(self, geometry: Geometry, qo_len: int, requests: dict[int, int], kernels: str, seed: int = 0) -> None:
        lengths = list(requests.values())
        self.geometry, self.qo_len, self.requests = geometry, qo_len, requests
        pages = torch.randperm(geometry.num_pages, generator=torch.Generator().manual_seed(seed)).tolist()
        width = geometry.max_pages
        own = [pages[place * width : (place + 1) * width] for place in range(len(lengths))]
        self.scene = Scene.build(geometry, geometry.max_batch, qo_len, lengths, own)
        self.driver = DecodeDriver(geometry, geometry.max_batch, qo_len, DEVICE, kernels=kernels)
        self.cache = PagedCache.allocate(geometry, DEVICE)
        heads = {"k": geometry.kv_heads, "v": geometry.kv_heads, "index_k": 1}
        rows = geometry.max_batch * qo_len
        shapes = {"q": geometry.q_heads, "index_q": geometry.index_heads, **heads}
        host = {
            name: torch.full((rows, count, geometry.head_dim), NAN, dtype=geometry.dtype)
            for name, count in shapes.items()
        }
        caches = [torch.full(tensor.shape, NAN, dtype=geometry.dtype) for tensor in self.tensors()]
        for place, (request, length) in enumerate(requests.items()):
            draw = torch.Generator().manual_seed(request)
            fresh = slice(place * qo_len, (place + 1) * qo_len)
            for name in ("q", "index_q"):
                host[name][fresh] = torch.randn(qo_len, *host[name].shape[1:], generator=draw).to(geometry.dtype)
            for cache, name in zip(caches, heads, strict=True):
                tokens = torch.randn(length, cache.shape[1], geometry.head_dim, generator=draw).to(geometry.dtype)
                for position in range(max(length - qo_len, 0)):
                    page, offset = self.scene.slot(place, position)
                    cache[page, :, offset] = tokens[position]
                new = tokens[max(length - qo_len, 0) :]
                host[name][fresh][qo_len - new.shape[0] :] = new
        self.before = dict(zip(NAMES, caches, strict=True))
        self.inputs = {name: tensor.to(DEVICE) for name, tensor in host.items()}
        for tensor, content in zip(self.tensors(), caches, strict=True):
            tensor.copy_(content)

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return self.cache.k, self.cache.v, self.cache.index_k

    def run(self) -> Step:
        """One step of a sparse layer, and dense attention over the same caches."""
        driver, given = self.driver, self.inputs
        driver.stage(list(self.requests.values()), self.scene.rows)
        driver.page_table.copy_(self.scene.padded())
        self.dense = torch.full_like(driver.out, NAN)
        for tensor in (driver.scores, driver.out, *((driver.triton.partials.totals,) if driver.triton else ())):
            tensor.fill_(NAN)
        driver.plan()
        order = ("q", "k", "v", "index_q", "index_k")
        driver.sparse_layer(*(given[name] for name in order), self.cache)
        driver.attend_dense(given["q"], self.cache, self.dense)
        return self

    def of(self, request: int) -> dict[str, torch.Tensor]:
        """What the step gave one request."""
        place = list(self.requests).index(request)
        rows = slice(place * self.qo_len, (place + 1) * self.qo_len)
        driver, found = self.driver, {}
        for row in range(rows.start, rows.stop):
            found[f"scores {row - rows.start}"] = driver.scores[:, row, : int(driver.ladder.valid_pages[row])]
        return {"ids": driver.page_ids[rows], "out": driver.out[rows], "dense": self.dense[rows], **found}


def same_bits(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    kind = {2: torch.int16, 4: torch.int32}
    wrong = [
        name
        for name in first
        if not torch.equal(*(one[name].contiguous().view(kind[one[name].element_size()]) for one in (first, second)))
    ]
    assert first.keys() == second.keys() and not wrong


CASES = [
    (1, {1: 0, 2: 1, 3: 16, 4: 17, 5: 160}, {}),
    (4, {1: 2, 2: 18, 3: 145}, {}),
    (8, {1: 5, 2: 131}, dict(q_heads=4, kv_heads=1, index_heads=1)),
    (3, {1: 97}, dict(q_heads=2, kv_heads=1, index_heads=1, init_pages=1, local_pages=2, head_dim=24)),
    (4, {1: 3, 2: 129}, dict(q_heads=4, kv_heads=1, index_heads=1, dtype=torch.bfloat16)),
]


@pytest.mark.parametrize(("qo_len", "requests", "changes"), CASES, ids=["q1", "q4", "q8", "q3", "bf16"])
def test_a_step_is_right_and_equals_the_portable_one_where_that_is_exact(qo_len, requests, changes):
    geometry = sizes(len(requests) + 1, **changes)
    step = Step(geometry, qo_len, requests, "triton").run()
    plain = Step(geometry, qo_len, requests, "portable").run()
    for name in ("qo_offsets", "extents", "valid_pages", "slots"):
        assert torch.equal(getattr(step.driver.ladder, name), getattr(plain.driver.ladder, name))
    for got, expected in zip(step.tensors(), plain.tensors(), strict=True):
        assert torch.equal(got[:-1].isnan(), expected[:-1].isnan())
        assert torch.equal(got[:-1].nan_to_num(), expected[:-1].nan_to_num())
    scores, ids = step.driver.scores.cpu(), step.driver.page_ids.cpu()
    seen = step.scene.visible_scores().expand_as(scores)
    assert bool(scores[~seen].isnan().all())
    loose = geometry.dtype is torch.bfloat16
    fresh = {"k_cache": "k", "v_cache": "v", "index_cache": "index_k"}
    caches = answer.caches_after(
        step.scene, step.before, {name: step.inputs[given].cpu() for name, given in fresh.items()}
    )
    host = {name: step.inputs[name].cpu() for name in ("q", "index_q")}
    right = answer.scores(step.scene, caches["index_cache"], host["index_q"])
    assert torch.allclose(scores[seen].double(), right[seen], rtol=0, atol=2e-5)
    assert torch.equal(ids, answer.page_ids(step.scene, scores))
    sparse = answer.sparse_out(step.scene, caches["k_cache"], caches["v_cache"], host["q"], ids)
    dense = answer.dense_out(step.scene, caches["k_cache"], caches["v_cache"], host["q"])
    for got, expected in ((step.driver.out, sparse), (step.dense, dense)):
        # The interpreter rounds to bf16 towards zero.
        assert torch.allclose(got.cpu().double(), expected, rtol=0, atol=3e-2 if loose else 5e-6)
    for got, name in ((step.driver.out, "out"), (step.dense, "dense")):
        empty = torch.tensor([extent == 0 for extent in step.scene.extents()], device=DEVICE)
        assert bool(empty.any()), name
        assert bool((got[empty] == 0).all()) and not bool(got[empty].signbit().any())


def test_bits_of_a_request_do_not_depend_on_neighbours_row_bucket_or_placement():
    one = dict(q_heads=4, kv_heads=1, index_heads=1)
    alone = Step(sizes(1, **one), 4, {7: 145}, "triton").run().of(7)
    for requests, bucket, width, seed in (
        ({7: 145, 1: 3}, 2, 10, 1),
        ({1: 66, 2: 0, 7: 145}, 5, 10, 2),
        ({2: 160, 7: 145}, 2, 13, 3),
    ):
        same_bits(alone, Step(sizes(bucket, width, **one), 4, requests, "triton", seed).run().of(7))


def test_a_captured_steps_live_fields_may_change_between_calls():
    """The same driver object serves lengths that grow and shrink, and another table."""
    one = dict(q_heads=4, kv_heads=1, index_heads=1)
    step = Step(sizes(2, **one), 4, {1: 20, 2: 33}, "triton").run()
    for requests in ({1: 130, 2: 4},):
        later = Step(sizes(2, **one), 4, requests, "triton", seed=5)
        driver, later.driver = later.driver, step.driver
        mixed = later.run()
        fresh = Step(sizes(2, **one), 4, requests, "triton", seed=5)
        fresh.driver = driver
        fresh.run()
        for request in requests:
            same_bits(mixed.of(request), fresh.of(request))


def test_a_mixed_batch_with_a_long_prefill_equals_the_portable_one():
    geometry = sizes(2, q_heads=4, kv_heads=1, index_heads=1, max_qo_len=4)
    qo_lens, lengths, rows = [10, 1], [7, 33], [[3], [9, 4, 0]]
    draw = torch.Generator().manual_seed(0)
    step = [torch.randn(11, heads, 32, generator=draw).to(DEVICE) for heads in (4, 1, 1, 1, 1)]
    history = [torch.randn(81, 1, 16, 32, generator=draw) for _ in range(3)]
    found = {}
    for kernels in ("portable", "triton"):
        cache = PagedCache(*(tensor.to(DEVICE) for tensor in history))
        table = FlatTable.stage(rows, lengths, geometry, DEVICE)
        batch = EagerBatch(geometry, qo_lens, lengths, table, DEVICE, kernels=kernels)
        sparse = batch.sparse_layer(*step, cache)
        ids = batch.select(batch.score(step[3], cache))
        found[kernels] = (sparse, batch.attend_dense(step[0], cache), cache.k[:-1], ids)
    for ours, right in zip(found["triton"], found["portable"], strict=True):
        assert torch.allclose(ours.double(), right.double(), rtol=0, atol=5e-6)
    assert bool((found["triton"][0][:3] == 0).all()) and bool((found["triton"][1][:3] == 0).all())


def test_a_correction_is_one_launch_and_gives_the_portable_fields(monkeypatch):
    found = {}
    for kernels in ("portable", "triton"):
        driver = DecodeDriver(sizes(3), 3, 4, DEVICE, kernels=kernels)
        driver.stage([36, 21, 68], [[3, 1, 8], [5, 6], [9, 4, 0, 7, 2]])
        overlap = OverlapLengths(3, 4, DEVICE)
        overlap.stage([36, 21, 68])
        overlap.accepted.copy_(torch.tensor([1, 4, 2]))
        if kernels == "triton":
            monkeypatch.setattr(driver, "plan", lambda: pytest.fail("a second launch"))
        overlap.correct(driver)
        names = ("kv_lens", "qo_offsets", "extents", "valid_pages", "slots")
        found[kernels] = {name: driver.tensors()[name].cpu() for name in names}
    assert found["triton"]["kv_lens"].tolist() == [33, 21, 66]
    for name, tensor in found["portable"].items():
        assert torch.equal(found["triton"][name], tensor), name


def test_fp8_caches_hold_the_portable_bytes_and_are_read_with_their_scales():
    fp8 = torch.float8_e4m3fn
    one = dict(q_heads=2, kv_heads=1, index_heads=1, dtype=torch.bfloat16, kv_dtype=fp8, index_dtype=fp8)
    geometry, scales = sizes(1, **one), {"k_scale": 0.5, "v_scale": 0.125, "index_scale": 2.0}
    draw = torch.Generator().manual_seed(0)
    drawn = [torch.randn(2, heads, 32, generator=draw) for heads in (2, 1, 1, 1, 1)]
    # Numbers that fp8 holds exactly: the interpreter rounds some of the others wrongly.
    step = [(tensor + tensor.sign()).to(fp8).to(torch.bfloat16).to(DEVICE) for tensor in drawn]
    history = [(torch.randn(81, 1, 16, 32, generator=draw) / scale).to(fp8) for scale in scales.values()]
    found = {}
    for kernels in ("portable", "triton"):
        cache = PagedCache(*(tensor.clone().to(DEVICE) for tensor in history), **scales)
        driver = DecodeDriver(geometry, 1, 2, DEVICE, kernels=kernels)
        driver.stage([40], [[3, 1, 8]])
        driver.plan()
        sparse = driver.sparse_layer(*step, cache).float()
        dense = driver.attend_dense(step[0], cache, torch.empty_like(driver.out)).float()
        found[kernels] = (
            sparse,
            dense,
            *(tensor[:-1].view(torch.uint8) for tensor in (cache.k, cache.v, cache.index_k)),
        )
    for ours, right in zip(found["triton"], found["portable"], strict=True):
        # bf16 weights and output, which the interpreter rounds towards zero.
        limit = 3e-2 if right.is_floating_point() else 0
        assert float((ours.double() - right.double()).abs().max()) <= limit


def test_prepare_leaves_lengths_table_and_pages_as_they_are():
    step = Step(sizes(2, q_heads=4, kv_heads=1, index_heads=1), 2, {1: 40, 2: 18}, "triton")
    driver = step.driver
    driver.stage([40, 18], step.scene.rows)
    before = [driver.kv_lens.clone(), driver.page_table.clone(), *(tensor[:-1].clone() for tensor in step.tensors())]
    driver.prepare(*(step.inputs[name] for name in ("q", "k", "v", "index_q", "index_k")), step.cache)
    after = [driver.kv_lens, driver.page_table, *(tensor[:-1] for tensor in step.tensors())]
    assert all(torch.equal(*(side.nan_to_num() for side in both)) for both in zip(before, after, strict=True))
    assert driver.ladder.extents.tolist() == [39, 40, 17, 18]


def test_a_shared_workspace_serves_every_bucket_and_never_grows():
    one = dict(q_heads=4, kv_heads=1, index_heads=1)
    geometry = sizes(2, **one)
    own = DecodeDriver(geometry, 1, 1, DEVICE, kernels="triton").triton.partials
    parts = own.capacity // geometry.q_heads
    partials = Partials(4, 4, parts, 32, DEVICE)
    for batch in (1, 2):
        DecodeDriver(sizes(2, **one), batch, 2, DEVICE, kernels="triton", partials=partials)
    with pytest.raises(CapacityExceeded, match=rf"6 rows of 4 heads .* the workspace holds {16 * parts}"):
        DecodeDriver(sizes(3, **one), 3, 2, DEVICE, kernels="triton", partials=partials)


def test_a_new_variant_is_refused_inside_a_capture(monkeypatch):
    passes = pytest.importorskip("msa.ops.triton.passes")
    step = Step(sizes(1, q_heads=4, kv_heads=1, index_heads=1), 1, {1: 20}, "triton").run()
    refused = []
    monkeypatch.setattr(passes, "refuse_while_capturing", refused.append)
    step.run()
    assert refused == []
    step.driver.attend_sparse(step.inputs["q"].to(torch.bfloat16), step.cache)
    assert len(refused) == 1 and "sparse_gqa" in refused[0] and "prepare" in refused[0]


def test_other_kernels_are_refused():
    with pytest.raises(GeometryError, match="'cutlass', expected one of portable, triton"):
        DecodeDriver(sizes(1), 1, 1, DEVICE, kernels="cutlass")
