"""The planted defects do what they say, at the vectors that are known for them; graphcheck's own table finds them."""

from __future__ import annotations

import pytest
import torch

from graphcheck import Case, Contents, PageTable
from graphcheck.cases import Integer, Lengths
from msa.bench import Variant, small_variants
from msa.component import COMPONENTS
from msa.geometry import Geometry
from msa.zoo import ZOO
from msa.zoo.kernels import MergesBackward, OwnAttention, SplitsByRows
from msa.zoo.staging import KeepsStagedTable, RestagesBoth
from msa.zoo.values import ConsumesAscending, DividesByNothing, HandsOverScoreOrder

torch.set_num_threads(1)
CPU = torch.device("cpu")
# The sizes of the vectors; the zoo plants the same defects at smaller ones.
M3_PAGES = {"flat": Variant(Geometry.m3(4, max_batch=3, max_pages=3, num_pages=9), 4, 3)}
FOUR = small_variants(4)


def drawn(component, lens: list[int], size: int, **fields) -> Case:
    variant, built = next(iter(component.VARIANTS.items()))
    geometry, bucket = built.geometry, built.bucket
    values = {
        "variant": variant,
        "size": Integer(size, 1, bucket),
        "lens": Lengths(tuple(lens), 0, geometry.capacity),
        "table": PageTable("permuted", 3, bucket, geometry.max_pages, geometry.num_pages),
        "x": Contents("normal", 1),
        "kv": Contents("normal", 2),
    }
    return Case(**{**values, **fields}).through_json()


def answers(component, case: Case) -> list[dict[str, torch.Tensor]]:
    """What the region and the eager engine give, each with buffers of its own."""
    found = []
    for how in ("run", "eager"):
        buffers = component.allocate(CPU)
        component.stage(buffers, case)
        outputs = component.run(buffers) if how == "run" else component.eager(buffers, case)
        found.append({name: tensor.clone() for name, tensor in outputs.items()})
    return found


def test_a_staged_table_with_corrected_pointers_moves_the_last_request():
    """Page 128: context 300, true 126 staged 129, true 200 staged 201; pages 3, 2, 2 become 3, 1, 2."""
    kept = {"accepted": Lengths((4, 1, 3), 1, 4)}
    for kind, right in ((RestagesBoth, True), (KeepsStagedTable, False)):
        component = kind(M3_PAGES)
        case = drawn(component, [300, 129, 201], 3, **kept)
        assert component.true_lengths(case) == [300, 126, 200]
        region, eager = answers(component, case)
        assert torch.equal(region["out"][:8], eager["out"][:8])
        assert torch.equal(region["out"][8:], eager["out"][8:]) is right


def test_a_correction_that_crosses_no_page_hides_the_defect():
    component = KeepsStagedTable(M3_PAGES)
    region, eager = answers(component, drawn(component, [300, 127, 201], 3, accepted=Lengths((4, 1, 3), 1, 4)))
    assert torch.equal(region["out"], eager["out"])


def test_score_order_loses_pages_only_where_the_order_differs():
    region, eager = answers(ConsumesAscending(FOUR), drawn(ConsumesAscending(FOUR), [140, 3, 0, 66], 4))
    worse, same = answers(HandsOverScoreOrder(FOUR), drawn(HandsOverScoreOrder(FOUR), [140, 3, 0, 66], 4))
    assert torch.equal(region["out"], eager["out"]) and torch.equal(worse["out"], same["out"])
    assert not torch.equal(region["out"][:4], worse["out"][:4])
    assert torch.equal(region["out"][4:12], worse["out"][4:12])


def test_an_empty_row_becomes_nan_and_no_other_does():
    region, _ = answers(DividesByNothing(FOUR), drawn(DividesByNothing(FOUR), [140, 2, 9, 9], 2))
    assert region["out"].isnan().flatten(1).all(1).tolist() == [False] * 4 + [True] * 2 + [False] * 2 + [True] * 8


@pytest.mark.parametrize(("kind", "differs"), [(OwnAttention, False), (SplitsByRows, True), (MergesBackward, True)])
def test_another_order_of_a_sum_changes_last_bits_only(kind, differs):
    case = drawn(kind(), [60, 33], 2, picks=Contents("normal", 1))
    region, eager = answers(kind(), case)
    assert torch.equal(region["out"], eager["out"]) is not differs
    assert torch.allclose(region["out"], eager["out"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("entry", ZOO, ids=lambda entry: entry.name)
def test_every_clean_twin_equals_the_eager_engine(entry):
    component = entry.clean()
    variant = next(iter(component.VARIANTS.values()))
    bucket, most = variant.bucket, variant.geometry.capacity
    extra = {
        "accepted": Lengths((4, 1, 3)[:bucket], 1, 4),
        "picks": Contents("normal", 1),
        "length": Integer(77, 1, 140),
        "odd": 3,
    }
    fields = {name: value for name, value in extra.items() if name in component.fields()}
    lens = [min(length, most) for length in (140, 33, 2, 70)]
    case = drawn(component, lens[:bucket], bucket, **fields)
    region, eager = answers(component, case)
    assert region.keys() == eager.keys()
    for name, tensor in region.items():
        seen = component.scene(case).visible_scores() if name == "scores" else torch.ones(())
        assert torch.equal(*(torch.where(seen.bool(), t, 0).to(torch.float64) for t in (tensor, eager[name])))


@pytest.mark.parametrize("name", sorted(COMPONENTS))
def test_a_case_beyond_capacity_is_refused_by_stage(name):
    component = COMPONENTS[name]()
    case = drawn(
        component, [3, 3, 3, 3][: 2 if name in ("decode.m3", "layers") else 4], 1, accepted=Lengths((1,) * 4, 1, 4)
    )
    long = case.replaced(lens=Lengths((100_000, 3), 0, 100_000), odd=3, picks=Contents("normal", 1))
    with pytest.raises(ValueError, match="request 0: "):
        component.stage(component.allocate(CPU), long)
