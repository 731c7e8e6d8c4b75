"""Driver and eager API give the same bits, whatever the batch, the bucket, the table and the neighbours."""

from __future__ import annotations

import random

import pytest
import torch

from msa import DecodeDriver, EagerBatch, FlatTable, Geometry, PagedCache

torch.set_num_threads(1)


def geometry(bucket: int = 6, width: int = 10, **sizes) -> Geometry:
    values = dict(
        q_heads=8, kv_heads=2, index_heads=2, head_dim=32, page_size=16, top_k=4, max_batch=bucket, max_pages=width
    )
    values.update(num_pages=80, max_seq_len=width * 16, dtype=torch.float32)
    values.update(sizes)
    return Geometry(**values)


class World:
    """Requests with their own history and new tokens, independent of where they are placed."""

    def __init__(self, sizes: Geometry, qo_len: int, lengths: list[int], seed: int = 0) -> None:
        self.sizes, self.qo_len, self.lengths = sizes, qo_len, lengths
        draw = torch.Generator().manual_seed(seed)
        count = len(lengths)

        def new(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=draw).to(sizes.dtype)

        longest = sizes.max_seq_len
        self.history = [new(count, longest, h, sizes.head_dim) for h in (sizes.kv_heads, sizes.kv_heads, 1)]
        heads = (sizes.q_heads, sizes.kv_heads, sizes.kv_heads, sizes.index_heads, 1)
        self.step = [new(count, qo_len, h, sizes.head_dim) for h in heads]

    def cache(self, sizes: Geometry, who: list[int], rows: list[list[int]]) -> PagedCache:
        cache = PagedCache.allocate(sizes, "cpu")
        for tensor, history in zip((cache.k, cache.v, cache.index_k), self.history, strict=True):
            tensor.fill_(float("nan"))
            for request, pages in zip(who, rows, strict=True):
                for position in range(max(self.lengths[request] - self.qo_len, 0)):
                    page = pages[position // sizes.page_size]
                    tensor[page, :, position % sizes.page_size] = history[request, position]
        return cache

    def inputs(self, who: list[int], bucket: int) -> list[torch.Tensor]:
        padded = []
        for tensor in self.step:
            full = torch.full((bucket, *tensor.shape[1:]), float("nan"), dtype=tensor.dtype)
            full[: len(who)] = tensor[who]
            padded.append(full.flatten(0, 1))
        return padded

    def rows(self, sizes: Geometry, who: list[int], seed: int) -> list[list[int]]:
        pages = list(range(sizes.num_pages))
        random.Random(seed).shuffle(pages)
        return [pages[i * sizes.max_pages : (i + 1) * sizes.max_pages] for i in range(len(who))]

    def drive(self, sizes: Geometry, who: list[int], seed: int = 0) -> dict[str, torch.Tensor]:
        """Per request: scores, ids, outputs and written tokens of the driver."""
        rows, lengths = self.rows(sizes, who, seed), [self.lengths[request] for request in who]
        cache, dense_cache = self.cache(sizes, who, rows), self.cache(sizes, who, rows)
        driver = DecodeDriver(sizes, sizes.max_batch, self.qo_len, "cpu")
        driver.stage(lengths, rows)
        # Unused entries may hold anything.
        used = driver.page_table >= 0
        driver.page_table.masked_fill_(~used, 10**6).masked_fill_(~used & (torch.arange(sizes.max_pages) % 2 == 0), -9)
        driver.scores.fill_(float("nan"))
        q, k, v, index_q, index_k = self.inputs(who, sizes.max_batch)
        driver.plan()
        dense = torch.empty_like(driver.out)
        driver.sparse_layer(q, k, v, index_q, index_k, cache)
        driver.write(dense_cache, k, v, index_k)
        driver.attend_dense(q, dense_cache, dense)
        all_heads = torch.empty_like(dense)
        driver.attend_dense(q, dense_cache, all_heads, heads_at_once=sizes.kv_heads)
        assert torch.equal(bits(dense), bits(all_heads))
        real = len(who) * self.qo_len
        assert bool((driver.out[real:] == 0).all()) and bool((dense[real:] == 0).all())
        assert bool((driver.page_ids[real:] == -1).all())
        return self.collect(who, rows, cache, driver.scores, driver.page_ids, driver.out, dense)

    def eager(self, sizes: Geometry, who: list[int], seed: int = 0) -> dict[str, torch.Tensor]:
        rows, lengths = self.rows(sizes, who, seed), [self.lengths[request] for request in who]
        cache = self.cache(sizes, who, rows)
        batch = EagerBatch(
            sizes, [self.qo_len] * len(who), lengths, FlatTable.stage(rows, lengths, sizes, "cpu"), "cpu"
        )
        q, k, v, index_q, index_k = self.inputs(who, len(who))
        batch.write(cache, k, v, index_k)
        scores = batch.score(index_q, cache)
        ids = batch.select(scores)
        wide = torch.full((sizes.index_heads, batch.rows, sizes.max_pages), float("nan"))
        for request, mine in zip(batch.requests, scores, strict=True):
            wide[:, request.rows, : request.width] = mine
        out, dense = batch.attend_sparse(q, cache, ids), batch.attend_dense(q, cache)
        return self.collect(who, rows, cache, wide, ids, out, dense)

    def collect(self, who, rows, cache, scores, ids, out, dense) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        size = self.sizes.page_size
        for place, (request, pages) in enumerate(zip(who, rows, strict=True)):
            mine = slice(place * self.qo_len, (place + 1) * self.qo_len)
            for token in range(self.qo_len):
                row, position = place * self.qo_len + token, self.lengths[request] - self.qo_len + token
                valid = max(position, -1) // size + 1
                found[f"scores {request} {token}"] = bits(scores[:, row, :valid])
                if position >= 0:
                    slot = (pages[position // size], slice(None), position % size)
                    for name, tensor in (("k", cache.k), ("v", cache.v), ("index_k", cache.index_k)):
                        found[f"{name} {request} {token}"] = bits(tensor[slot])
            found[f"ids {request}"] = ids[mine].clone()
            found[f"out {request}"] = bits(out[mine])
            found[f"dense {request}"] = bits(dense[mine])
            assert not bool(out[mine].isnan().any()) and not bool(dense[mine].isnan().any())
        return found


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.int32 if tensor.element_size() == 4 else torch.int16).clone()


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    shared = first.keys() & second.keys()
    assert shared
    wrong = [name for name in sorted(shared) if not torch.equal(first[name], second[name])]
    assert not wrong


LENGTHS = [0, 1, 3, 15, 16, 17, 18, 33, 64, 65, 97, 160]


@pytest.mark.parametrize("qo_len", [1, 2, 4, 8])
def test_the_driver_equals_the_eager_api_on_many_batches(qo_len):
    pick = random.Random(qo_len)
    for trial in range(6):
        bucket = pick.randint(1, 6)
        sizes = geometry(bucket)
        lengths = [pick.choice([*LENGTHS, pick.randint(0, 160)]) for _ in range(pick.randint(1, bucket))]
        world = World(sizes, qo_len, lengths, seed=trial)
        who = list(range(len(lengths)))
        same(world.drive(sizes, who, trial), world.eager(sizes, who, trial))


def test_a_request_does_not_depend_on_its_neighbours_its_bucket_or_its_place():
    sizes = geometry(6)
    world = World(sizes, 4, [97, 3, 18, 160, 64, 0])
    alone = world.drive(geometry(1), [0])
    for bucket, who in ((2, [0]), (2, [1, 0]), (3, [0, 3, 5]), (5, [4, 2, 1, 0]), (6, [5, 4, 3, 2, 1, 0])):
        same(alone, world.drive(geometry(bucket), who, seed=bucket))


def test_a_request_does_not_depend_on_the_width_of_the_table():
    world = World(geometry(3), 4, [97, 18, 64])
    narrow = world.drive(geometry(3, 7), [0, 1, 2])
    for width in (8, 11, 16, 25):
        same(narrow, world.drive(geometry(3, width), [0, 1, 2]))


def test_physical_placement_of_pages_changes_no_bit():
    sizes = geometry(3)
    world = World(sizes, 4, [97, 18, 64])
    first = world.drive(sizes, [0, 1, 2], seed=1)
    for seed in (2, 3, 4):
        same(first, world.drive(sizes, [0, 1, 2], seed=seed))


def test_rows_of_a_verify_step_equal_single_steps():
    """Verifying four tokens gives each row the bits that a plain decode step at that length would give."""
    sizes = geometry(1)
    world = World(sizes, 4, [66])
    verify = world.drive(sizes, [0])
    for token in range(4):
        single = World(sizes, 1, [63 + token])
        single.history = [tensor.clone() for tensor in world.history]
        for name, part in zip((0, 1, 2), (1, 2, 4), strict=True):
            single.history[name][0, 62:66] = world.step[part][0]
        single.step = [tensor[:, token : token + 1] for tensor in world.step]
        alone = single.drive(sizes, [0])
        assert torch.equal(alone["out 0"][0], verify["out 0"][token])
        assert torch.equal(alone["dense 0"][0], verify["dense 0"][token])
        assert torch.equal(alone["ids 0"][0], verify["ids 0"][token])


@pytest.mark.parametrize("parallel", [1, 4, 8])
def test_they_agree_at_the_sizes_of_m3(parallel):
    sizes = Geometry.m3(parallel, max_batch=2, max_pages=19, num_pages=38, max_seq_len=2400)
    world = World(sizes, 4, [2310, 129])
    same(world.drive(sizes, [0, 1]), world.eager(sizes, [0, 1]))


def test_initial_pages_are_forced_in_both():
    sizes = geometry(2, init_pages=1, local_pages=2)
    world = World(sizes, 4, [160, 97])
    driven = world.drive(sizes, [0, 1])
    same(driven, world.eager(sizes, [0, 1]))
    assert bool((driven["ids 0"][:, :, 0] == 0).all())
    assert driven["ids 0"][-1, :, -2:].tolist() == [[8, 9], [8, 9]]
