"""The Triton operators compile for Hopper at the width of MiniMax-M3, in the variants that are promised; no GPU.

The interpreter takes Python that Triton's compiler refuses, so running there is not enough.
"""

from __future__ import annotations

import os
import re

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter does not compile", allow_module_level=True)
triton = pytest.importorskip("triton", reason="the kernels need triton, which is not installed")
from eagle3.ops import triton as kernels  # noqa: E402 - after the check for triton

SHARED_MEMORY = 227 * 1024
HIDDEN = 6144
TYPES = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64"}


def kind(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return TYPES[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


class Launches:
    """Compiles instead of launching; remembers what every variant needs."""

    def __init__(self) -> None:
        self.compiled: dict[tuple[str, str], object] = {}
        self.grids: dict[str, list[tuple[int, ...]]] = {}

    def run(self, kernel, *given, grid, warmup, **named):
        options = {name: named.pop(name) for name in ("num_warps", "enable_fp_fusion") if name in named}
        arguments = {**dict(zip(kernel.arg_names, given, strict=False)), **named}
        fixed = {
            name: value for name, value in named.items() if kernel.params[kernel.arg_names.index(name)].is_constexpr
        }
        signature = {name: "constexpr" if name in fixed else kind(arguments[name]) for name in kernel.arg_names}
        self.grids.setdefault(kernel.__name__, []).append(grid)
        free = set(kernel.do_not_specialize or ())
        # What is neither a pointer nor fixed must not be specialised, or its value makes a variant.
        assert all(name in free for name in kernel.arg_names if signature[name] in ("i32", "fp32"))
        aligned = {
            (place,): [["tt.divisibility", 16]]
            for place, name in enumerate(kernel.arg_names)
            if signature[name].startswith("*") and name not in free
        }
        for place, name in enumerate(kernel.arg_names):
            assert (place,) not in aligned or arguments[name].data_ptr() % 16 == 0
        variant = (kernel.__name__, repr((signature, fixed, options)))
        if variant not in self.compiled:
            places = {(kernel.arg_names.index(name),): value for name, value in fixed.items()}
            source = triton.compiler.ASTSource(kernel, signature, places, aligned)
            target = triton.backends.compiler.GPUTarget("cuda", 90, 32)
            self.compiled[variant] = triton.compile(source, target=target, options=options)


@pytest.fixture
def launches(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    log = Launches()
    monkeypatch.setattr(triton.JITFunction, "run", lambda kernel, *given, **named: log.run(kernel, *given, **named))
    return log


def instructions(compiled) -> set[str]:
    return set(re.findall(r"(?:wg)?mma\.\S*\.m\d+n\d+k\d+\S*", compiled.asm["ptx"]))


def test_a_weight_has_two_variants_of_one_instruction(launches):
    # Never touched, since nothing is launched.
    weight = torch.empty(HIDDEN, HIDDEN, dtype=torch.bfloat16)
    bias = torch.zeros(HIDDEN, dtype=torch.bfloat16)
    for rows in (1, 3, 16, 17, 64, 300):
        x = torch.zeros(rows + 1, HIDDEN, dtype=torch.bfloat16)[1:]
        kernels.linear(x, weight, bias)
    names = sorted(name for name, _ in launches.compiled)
    assert names == ["_merge", "_multiply", "_multiply"]
    assert launches.grids["_multiply"] == [(tiles, 96, 4) for tiles in (1, 1, 1, 1, 2, 10)]
    assert launches.grids["_merge"][1] == (3, 6)
    for (name, _), compiled in launches.compiled.items():
        assert compiled.metadata.shared <= SHARED_MEMORY
        if name == "_multiply":
            # The bits of a row would depend on the number of rows if another instruction took over where there are many.
            assert instructions(compiled) == {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"}
            # Rows of the weight come in 16 bytes at a time, ahead of their use.
            assert "cp.async.cg.shared.global" in compiled.asm["ptx"]


def test_single_precision_keeps_its_precision(launches):
    kernels.linear(torch.zeros(20, 1024), torch.zeros(70, 1024), dtype=torch.bfloat16)
    multiply = next(compiled for (name, _), compiled in launches.compiled.items() if name == "_multiply")
    assert instructions(multiply) == set() and multiply.metadata.shared <= SHARED_MEMORY


def test_elementwise_operators_have_one_variant_each(launches):
    table = torch.zeros(64, 128)
    for rows in (1, 5, 64):
        wide = torch.zeros(rows, HIDDEN + 8, dtype=torch.bfloat16)
        for x in (wide[:, :HIDDEN].contiguous(), wide[:, 8:], wide[:, 1 : HIDDEN + 1]):
            kernels.rms_norm(x, torch.zeros(HIDDEN, dtype=torch.bfloat16), 1e-5 * rows)
            kernels.swiglu(x, wide[:, :HIDDEN])
            heads = x.unflatten(1, (48, 128))
            kernels.rope(heads[:, 4:20], torch.zeros(rows, dtype=torch.int32), table[: rows + 1])
    assert sorted(name for name, _ in launches.compiled) == ["_gated", "_norm", "_rotate"]
