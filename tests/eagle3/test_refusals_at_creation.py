"""What an engine refuses when it is created, and what it does not."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from eagle3 import Eagle3Error, EngineConfig, check_creation
from eagle3.errors import BudgetInfeasible, CreationRefused, NotServed, OverrideRefused, RequirementMissing
from eagle3.kv_manager import CacheConfig, Serving
from eagle3.refusals import refuse_overrides, require

M3 = CacheConfig(layers=60, kv_heads=4, head_dim=128, index_dim=128)
DRAFT = CacheConfig(layers=1, kv_heads=8, head_dim=128)
GOOD = EngineConfig(target=M3, draft=DRAFT)


def test_what_is_served_is_not_refused():
    for backend, graphs, overlap, draft_len in itertools.product(
        ("msa", "reference"), (True, False), (False, True), range(8)
    ):
        if backend == "msa" or not graphs:
            check_creation(replace(GOOD, backend=backend, graphs=graphs, overlap=overlap, draft_len=draft_len))
    check_creation(replace(GOOD, draft=None, draft_len=0))
    check_creation(replace(GOOD, target_layers=5, capture_layers=(1, 2, 5)))
    check_creation(replace(GOOD, budget=10**10))


def test_the_reference_backend_with_graphs_and_speculation_names_both_ways_out():
    with pytest.raises(CreationRefused) as caught:
        check_creation(replace(GOOD, backend="reference"))
    assert isinstance(caught.value, ValueError)
    assert str(caught.value) == (
        'backend="reference" with CUDA graphs and speculation: it plans each step on the host, so a graph would replay '
        'the lengths of its capture; use backend="msa", or turn graphs off with graphs=False'
    )
    check_creation(replace(GOOD, backend="msa"))
    check_creation(replace(GOOD, backend="reference", graphs=False))


def test_the_reference_backend_is_not_captured_without_speculation_either():
    with pytest.raises(CreationRefused, match='backend="reference" with CUDA graphs: it plans'):
        check_creation(replace(GOOD, backend="reference", draft_len=0))


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"backend": "flashinfer"}, CreationRefused, "expected one of msa, reference"),
        ({"kernels": "cute"}, CreationRefused, "expected portable or triton"),
        ({"draft_len": 8}, CreationRefused, r"expected 0\.\.7"),
        ({"draft_len": -1}, CreationRefused, "draft_len -1"),
        ({"draft": None}, CreationRefused, "without a draft"),
        ({"serving": Serving(beam=4)}, NotServed, "beam search"),
        ({"serving": Serving(connector=True)}, NotServed, "a KV connector"),
        ({"draft": replace(DRAFT, mixed_windows=True)}, NotServed, "mix sliding and full windows"),
        ({"tree": True}, NotServed, "draft trees"),
        ({"kv_dtype": "nvfp4"}, NotServed, "a nvfp4 cache"),
        ({"two_models": True}, NotServed, "an engine of its own"),
        ({"two_models": True, "multi_token_head": True, "overlap": True}, NotServed, "multi-token head .* overlap"),
        ({"pipeline": 2}, NotServed, "2 pipeline stages"),
        ({"target_layers": 5}, CreationRefused, "5 layers has no default capture layers"),
        ({"capture_layers": (30, 2)}, CreationRefused, "ascending layers"),
        ({"capture_layers": (2, 61)}, CreationRefused, r"out of 0\.\.60"),
        ({"capture_layers": ()}, CreationRefused, "ascending layers"),
        ({"budget": 10**6}, BudgetInfeasible, "before the first token"),
        (
            {"budget": 138240 * 1000},
            CreationRefused,
            r"768 of 4100 tokens .* for the target, 768 of 4102 tokens .* for the draft",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_combination_is_refused_with_its_own_exception(change, kind, words):
    with pytest.raises(kind, match=words) as caught:
        check_creation(replace(GOOD, **change))
    assert type(caught.value) is kind and isinstance(caught.value, (Eagle3Error, ValueError))
    assert caught.value.reasons == (str(caught.value),)
    assert isinstance(caught.value, NotImplementedError) == (kind is NotServed)


def test_every_objection_is_named():
    with pytest.raises(CreationRefused) as caught:
        check_creation(replace(GOOD, backend="reference", target_layers=3, tree=True, kv_dtype="nvfp4"))
    assert type(caught.value) is CreationRefused and len(caught.value.reasons) == 4
    for words in ("turn graphs off", "no default capture layers", "block scales", "a nvfp4 cache"):
        assert sum(words in reason for reason in caught.value.reasons) == 1 and words in str(caught.value)
    with pytest.raises(NotServed, match="2 objections"):
        check_creation(replace(GOOD, tree=True, pipeline=2))


def test_overlap_asks_for_room_for_a_step_in_flight():
    """The least budget for one request, to the page, with and without a step in flight."""

    def served(pages: int, overlap: bool) -> bool:
        slopes = 138240 + 4096
        budget = slopes * 128 * (pages + 1)  # a page takes the writes of padding rows
        config = replace(GOOD, budget=budget, max_seq_len=128 * 4 - 7, overlap=overlap, draft_len=3)
        try:
            check_creation(config)
        except CreationRefused:
            return False
        return True

    # 505 + 4 tokens, and 2 more for the draft, fit into four pages of 128; 505 + 8 do not.
    assert served(4, overlap=False) and not served(3, overlap=False)
    assert served(5, overlap=True) and not served(4, overlap=True)


def test_a_package_is_absent_or_too_old():
    require("torch", (2, 0))
    with pytest.raises(RequirementMissing, match="not installed"):
        require("no-such-distribution-at-all", (1,))
    with pytest.raises(ImportError, match=r"torch >= 999\.1 is needed"):
        require("torch", (999, 1))


def test_triton_kernels_ask_for_triton(monkeypatch):
    from eagle3 import refusals

    asked = []
    monkeypatch.setattr(refusals, "require", lambda package, least: asked.append(package))
    check_creation(GOOD)
    assert asked == []
    check_creation(replace(GOOD, kernels="triton"))
    assert asked == ["triton"]


def test_a_subclass_that_replaces_what_saves_state_is_refused():
    class Worker:
        def __init_subclass__(cls) -> None:
            refuse_overrides(cls, Worker, ("forward",))

        def forward(self) -> None:
            self.body()

        def body(self) -> None: ...

    class Fine(Worker):
        def body(self) -> None: ...

    assert Fine.forward is Worker.forward
    with pytest.raises(OverrideRefused, match="Wrong replaces forward of Worker") as caught:

        class Wrong(Worker):
            def forward(self) -> None: ...

    assert isinstance(caught.value, TypeError)
