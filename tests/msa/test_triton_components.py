"""msa's components on the Triton kernels: captured code and eager API give the same bits, and declare what they use.

On a machine with a GPU these run there; elsewhere `test_triton_in_a_child` runs this module in Triton's interpreter.
"""

from __future__ import annotations

import os

import pytest
import torch

from graphcheck import Case, Contents, PageTable
from graphcheck.cases import Integer, Lengths
from graphcheck.compare import region_mask
from graphcheck.poison import bits, poison
from msa import Geometry
from msa.bench import Variant
from msa.component import COMPONENTS
from msa.component.attention import WORKSPACE

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("no GPU; test_triton_in_a_child runs these in Triton's interpreter", allow_module_level=True)
pytest.importorskip("triton", reason="the kernels need triton, which is not installed")

torch.set_num_threads(1)
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
SIZES = Geometry(
    q_heads=2,
    kv_heads=1,
    index_heads=1,
    head_dim=16,
    page_size=16,
    top_k=4,
    max_batch=3,
    max_pages=7,
    num_pages=21,
    max_seq_len=100,
    dtype=torch.float32,
)


def on_triton(name: str):
    component = COMPONENTS[name]({"tiny": Variant(SIZES, 2, 3)})
    component.kernels = "triton"
    return component


def case_of(component) -> Case:
    extra = {"picks": Contents("normal", 1), "odd": 3, "accepted": Lengths((2, 1, 2), 1, 2)}
    return Case(
        variant="tiny",
        size=Integer(2, 1, 3),
        lens=Lengths((97, 33, 0), 0, 100),
        table=PageTable("permuted", 3, 3, 7, 21),
        x=Contents("normal", 1),
        kv=Contents("normal", 2),
        **{name: value for name, value in extra.items() if name in component.fields()},
    ).through_json()


@pytest.mark.parametrize("name", ["dense", "overlap"])
def test_run_and_eager_give_the_same_bits_inside_what_is_written(name):
    found = {}
    for arm in ("run", "eager"):
        component = on_triton(name)
        buffers = component.allocate(DEVICE)
        assert component.allocation == "none" and component.benches["tiny"].driver.triton is not None
        assert {f"{part}_tiny" for part in WORKSPACE} <= set(component.scratch)
        case = case_of(component)
        for scratch in component.scratch:
            poison(buffers[scratch])
        component.stage(buffers, case)
        outputs = component.run(buffers) if arm == "run" else component.eager(buffers, case)
        written = component.written(buffers, case)
        everything = {**outputs, **{state: buffers[state] for state in component.mutates}}
        found[arm] = {
            output: bits(tensor).masked_fill(~mask, 0) if mask is not None else bits(tensor)
            for output, tensor in everything.items()
            for mask in [region_mask(tensor, written.get(output))]
        }
    assert found["run"].keys() == found["eager"].keys()
    assert [name for name, tensor in found["run"].items() if not torch.equal(tensor, found["eager"][name])] == []
    assert any(bool(tensor.any()) for tensor in found["run"].values())


def test_a_component_chooses_its_kernels_by_the_device():
    component = COMPONENTS["proxy"]({"tiny": Variant(SIZES, 2, 3)})
    component.allocate(torch.device("cpu"))
    assert component.chosen == "portable" and component.allocation == "transient"
    assert "peaks_tiny" not in component.scratch


def test_the_emulator_is_no_gpu():
    backend = pytest.importorskip("graphcheck.backend.emulator").EmulatorBackend()
    component = COMPONENTS["proxy"]({"tiny": Variant(SIZES, 2, 3)})
    with backend.active():
        component.allocate(backend.device)
        assert component.chosen == "portable"
