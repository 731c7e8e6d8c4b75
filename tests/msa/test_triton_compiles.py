"""The kernels compile for Hopper at the sizes of MiniMax-M3, with the arguments that the driver gives them; no GPU.

The interpreter takes Python that Triton's compiler refuses, so running there is not enough.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from msa import DecodeDriver, Geometry, PagedCache
from msa.errors import GeometryError

if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter does not compile", allow_module_level=True)
triton = pytest.importorskip("triton", reason="the kernels need triton, which is not installed")

SHARED_MEMORY = 227 * 1024
GLUON = pytest.importorskip("triton.experimental.gluon", reason="teams of rows need Triton's Gluon")
sparse_teams = pytest.importorskip("msa.ops.triton.sparse_teams", reason="teams of rows need Triton's Gluon")
OPTIONS = ("num_warps", "launch_pdl", "enable_fp_fusion", "maxnreg")
TYPES = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.float8_e4m3fn: "*fp8e4nv",
}


def kind(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return TYPES[value.dtype]
    if isinstance(value, sparse_teams.TensorDescriptor):
        dtype = TYPES[value.base.dtype].removeprefix("*")
        return f"tensordesc<{dtype}{list(value.block_shape)},{value.layout!r}>"
    return "fp32" if isinstance(value, float) else "i32"


class Launches:
    """Compiles instead of launching; remembers what every variant needs."""

    def __init__(self) -> None:
        self.compiled: dict[tuple[str, str], object] = {}

    def run(self, kernel, *given, grid, warmup, **named):
        options = {name: named.pop(name) for name in OPTIONS if name in named}
        arguments = {**dict(zip(kernel.arg_names, given, strict=False)), **named}
        fixed = {
            name: value for name, value in named.items() if kernel.params[kernel.arg_names.index(name)].is_constexpr
        }
        signature = {name: "constexpr" if name in fixed else kind(arguments[name]) for name in kernel.arg_names}
        variant = (f"{kernel.module}.{kernel.__name__}", repr((signature, fixed, options)))
        if variant in self.compiled:
            return
        free = set(kernel.do_not_specialize or ())
        aligned = {
            (place,): [["tt.divisibility", 16]]
            for place, name in enumerate(kernel.arg_names)
            if signature[name].startswith("*") and name not in free
        }
        places = {(kernel.arg_names.index(name),): value for name, value in fixed.items()}
        kinds = GLUON._runtime.GluonASTSource if kernel.is_gluon() else triton.compiler.ASTSource
        source = kinds(kernel, signature, places, aligned)
        target = triton.backends.compiler.GPUTarget("cuda", 90, 32)
        self.compiled[variant] = triton.compile(source, target=target, options=options)


@pytest.fixture
def launches(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    log = Launches()
    monkeypatch.setattr(triton.JITFunction, "run", lambda kernel, *given, **named: log.run(kernel, *given, **named))
    return log


def prepare(parallel: int, qo_len: int, stored: torch.dtype, pdl: bool, bucket: int = 2) -> None:
    geometry = Geometry.m3(parallel, max_batch=bucket, max_pages=8191 + bucket % 2, num_pages=4)
    driver = DecodeDriver(geometry, bucket, qo_len, "cpu", kernels="triton", pdl=pdl)

    def new(heads: int) -> torch.Tensor:
        return torch.zeros(bucket * qo_len, heads, 128, dtype=torch.bfloat16)

    made = PagedCache.allocate(geometry, "cpu")
    cache = PagedCache(made.k.to(stored), made.v.to(stored), made.index_k.to(stored))
    kv_heads = geometry.kv_heads
    driver.prepare(new(geometry.q_heads), new(kv_heads), new(kv_heads), new(kv_heads), new(1), cache)


@pytest.mark.parametrize(
    ("parallel", "qo_len", "stored", "pdl", "more"),
    # 64 page lists are walked in nodes and 96 of them as wholes; two and three are taken page by page.
    [(1, 8, torch.bfloat16, True, ["sparse_gqa._attend"]), (8, 1, torch.float8_e4m3fn, False, [])],
    ids=["tp1-q8-bf16-pdl", "tp8-q1-fp8"],
)
def test_every_variant_of_a_driver_compiles_for_hopper(launches, parallel, qo_len, stored, pdl, more):
    prepare(parallel, qo_len, stored, pdl)
    names = [".".join(name.rsplit(".", 2)[-2:]) for name, _ in launches.compiled]
    assert sorted(names) == [
        "dense_attention._attend",
        "kv_write._write",
        "kv_write._write",
        "merge._merge",
        "merge._merge",
        "plan_ladder._plan",
        "plan_ladder._plan",
        "proxy_score._score_pages",
        "select_pages._select",
        "sparse_gqa._attend",
    ]
    for compiled in launches.compiled.values():
        assert compiled.metadata.shared <= SHARED_MEMORY
        assert ("griddepcontrol.wait" in compiled.asm["ptx"]) is pdl
    # A bucket makes another variant only where the work is split in another way, lengths and tables never do.
    prepare(parallel, qo_len, stored, pdl, bucket=3)
    assert [".".join(name.rsplit(".", 2)[-2:]) for name, _ in launches.compiled][len(names) :] == more


@pytest.mark.parametrize(
    ("bucket", "walkers", "programs"),
    # 32 teams of four rows leave each of four programs a multiprocessor of its own, 48 teams do not, and 160 fill the GPU.
    [(8, 4, 1), (12, 4, 2), (40, 1, 2)],
)
def test_rows_that_may_walk_together_compile_for_hopper_and_fit_into_a_multiprocessor(
    monkeypatch, launches, bucket, walkers, programs
):
    monkeypatch.setattr(sparse_teams, "_hopper", lambda device: True)
    assert sparse_teams.Plan.of(bucket * 4, 4).walkers == walkers
    prepare(1, 4, torch.bfloat16, True, bucket=bucket)
    compiled = {".".join(name.rsplit(".", 2)[-2:]): made for (name, _), made in launches.compiled.items()}
    assert [name for name in sorted(compiled) if "sparse" in name] == ["sparse_teams._attend_teams"]
    answered = [name for name, variant in launches.compiled if "merge" in name and "'ANSWERED': True" in variant]
    assert len(answered) == (1 if walkers > 1 else 0)
    teams = compiled["sparse_teams._attend_teams"]
    assert 228 * 1024 // (teams.metadata.shared + 1024) == programs
    assert "wgmma" in teams.asm["ptx"] and "cp.async.bulk.tensor" in teams.asm["ptx"]


@pytest.mark.parametrize(
    "other",
    [
        {"qo_len": 6},
        {"k_cache": torch.zeros(2, 4, 64, 128, dtype=torch.bfloat16)},
        {"k_cache": torch.zeros(2, 4, 128, 128)},
        {"q": torch.zeros(16, 4 * 32, 128, dtype=torch.bfloat16)},
        {"page_ids": torch.zeros(16, 4, 8, dtype=torch.int32)},
    ],
    ids=["no-whole-teams", "pages", "dtype", "group", "top-k"],
)
def test_only_shapes_of_the_kernel_for_teams_go_there(monkeypatch, other):
    shapes = {
        "q": torch.zeros(16, 64, 128, dtype=torch.bfloat16),
        "k_cache": torch.zeros(2, 4, 128, 128, dtype=torch.bfloat16),
        "page_ids": torch.zeros(16, 4, 16, dtype=torch.int32),
        "qo_len": 4,
        "node": 4,
    }
    assert not sparse_teams.takes(**shapes), "there is no GPU"
    monkeypatch.setattr(sparse_teams, "_hopper", lambda device: True)
    assert sparse_teams.takes(**shapes)
    assert not sparse_teams.takes(**shapes | other)


@pytest.mark.parametrize("page_size", [8, 256])
def test_pages_that_no_kernel_takes_are_refused_with_the_way_out(page_size):
    geometry = replace(Geometry.m3(4, max_batch=1, max_pages=8, num_pages=8), page_size=page_size)
    with pytest.raises(GeometryError, match=f"got {page_size} tokens of 128 numbers.*kernels='portable'"):
        DecodeDriver(geometry, 1, 1, "cpu", kernels="triton")
    DecodeDriver(geometry, 1, 1, "cpu")
