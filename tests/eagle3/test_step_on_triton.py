"""The whole speculative step with Triton operators and Triton attention: what it says is what the portable step says.

On a machine with a GPU it runs there; elsewhere `test_operators_in_a_child` runs this module in Triton's interpreter.
"""

from __future__ import annotations

import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("no GPU; test_operators_in_a_child runs this in Triton's interpreter", allow_module_level=True)
pytest.importorskip("triton", reason="the kernels need triton, which is not installed")

from eagle3.component.models import BUCKET, PAGES, VOCABULARY, Models, successors  # noqa: E402 - after the check
from eagle3.component.speculation import tensors_of  # noqa: E402
from eagle3.step import SpeculativeStep  # noqa: E402

torch.set_num_threads(1)
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
DRAFT_LEN = 2


def ran(kernels: str) -> tuple[SpeculativeStep, Models]:
    """Two requests, which keep all drafts and none, and a row of padding, after a step."""
    models = Models(DEVICE, kernels)
    assert models.caches.draft is not None
    for number, cache in enumerate([*models.caches.target, models.caches.draft]):
        for tensor in tensors_of(cache).values():
            tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(number)))
    step = SpeculativeStep(models.target, models.head, models.caches, BUCKET, DRAFT_LEN, kernels=kernels)
    step.inputs[:2].copy_(torch.tensor([[5, *successors(5, DRAFT_LEN)], [9, 30, 31]]))
    table = torch.arange(BUCKET * PAGES, dtype=torch.int32).view(BUCKET, PAGES)
    step.page_table.copy_(table)
    assert step.loop is not None
    step.loop.page_table.copy_(table)
    step.lengths.stage([15, 30])
    step.run()
    return step, models


def test_the_step_on_triton_says_what_the_portable_step_says() -> None:
    """Expected: the same tokens, counts and drafts, next inputs and lengths; keys of the draft to a few ULP."""
    (mine, models), (theirs, others) = ran("triton"), ran("portable")
    assert mine.lengths.count.tolist() == [3, 1, 0]
    assert mine.tokens[0].tolist() == [token % VOCABULARY for token in successors(5, 3)]
    assert mine.loop is not None and theirs.loop is not None
    pairs = {
        "tokens": (mine.tokens, theirs.tokens),
        "count": (mine.lengths.count, theirs.lengths.count),
        "drafts": (mine.loop.drafts, theirs.loop.drafts),
        "inputs": (mine.inputs, theirs.inputs),
        "past": (mine.lengths.past, theirs.lengths.past),
        "kv_lens": (mine.lengths.kv_lens, theirs.lengths.kv_lens),
    }
    assert [name for name, (one, other) in pairs.items() if not torch.equal(one, other)] == []
    assert models.caches.draft is not None and others.caches.draft is not None
    # The dummy page takes the writes of padding rows in any order.
    torch.testing.assert_close(models.caches.draft.k[:-1], others.caches.draft.k[:-1], rtol=1e-4, atol=1e-4)
