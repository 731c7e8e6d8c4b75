"""The stack of layers gives what its layers give one by one, at both of its sizes."""

from __future__ import annotations

import pytest
import torch

from graphcheck import Case, Contents, PageTable
from graphcheck.cases import Integer, Lengths
from msa import answer
from msa.component import COMPONENTS
from msa.stack import DENSE, LAYERS, SPARSE, names

torch.set_num_threads(1)


def case_of(component, variant: str, lens: tuple[int, ...]) -> Case:
    geometry = component.VARIANTS[variant].geometry
    return Case(
        variant=variant,
        size=Integer(2, 1, 2),
        lens=Lengths(lens, 0, geometry.capacity),
        table=PageTable("permuted", 3, 2, geometry.max_pages, geometry.num_pages),
        x=Contents("normal", 1),
        kv=Contents("normal", 2),
    ).through_json()


def staged(variant: str, lens: tuple[int, ...]):
    component = COMPONENTS["layers"]()
    component.VARIANTS = {variant: component.VARIANTS[variant]}
    buffers = component.allocate(torch.device("cpu"))
    case = case_of(component, variant, lens)
    component.stage(buffers, case)
    return component, buffers, case


@pytest.mark.parametrize("variant", ["small", "tp4"])
def test_a_step_equals_the_eager_layers_and_the_reference(variant):
    component, buffers, case = staged(variant, (2310, 130))
    before = {name: tensor.clone() for name, tensor in buffers.items()}
    region = {name: tensor.clone() for name, tensor in component.run(buffers).items()}
    again, fresh, _ = staged(variant, (2310, 130))
    eager = again.eager(fresh, case)
    assert region.keys() == eager.keys() == {"outs", "chosen"}
    for name, tensor in region.items():
        assert torch.equal(tensor, eager[name]), name
    assert region["outs"].shape[0] == LAYERS and region["chosen"].shape[0] == SPARSE
    right = component.reference(before, case, region)
    assert torch.equal(right["chosen"], region["chosen"])
    assert torch.allclose(region["outs"].double(), right["outs"], rtol=0, atol=8e-3)
    for layer in range(LAYERS):
        for name in names(layer):
            live = buffers[f"{name}_{variant}"][:-1], right[f"{name}_{variant}"][:-1]
            assert torch.equal(*(tensor.nan_to_num() for tensor in live)), name
    # A layer's input is what the layers before it made.
    assert not torch.equal(region["outs"][DENSE], region["outs"][DENSE + 1])


def test_a_choice_is_confirmed_only_as_far_as_scores_allow_it():
    component, _, case = staged("small", (2310, 130))
    scene = component.scene(case)
    scores = torch.arange(20.0, dtype=torch.float64).expand(1, 4, 20).clone()
    scores[:, :, 7] = scores[:, :, 16] + 1e-4
    right = answer.page_ids(scene, scores)
    assert right[0, 0].tolist() == [7, 16, 17, 18]
    for ids, slack, kept in (
        ([7, 16, 17, 18], 1e-3, True),
        ([15, 16, 17, 18], 1e-3, False),
        ([7, 16, 18, 17], 1e-3, False),
        ([7, 15, 16, 17], 1e9, False),  # without the row's own page
        ([6, 16, 17, 18], 100.0, True),
    ):
        chosen = right.clone()
        chosen[0, 0] = torch.tensor(ids, dtype=torch.int32)
        assert torch.equal(answer.confirmed(scene, chosen, scores, slack), chosen) is kept, ids
