"""Acceptance, lengths and corrections recorded once and replayed on other values: the same bits as on the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch

from eagle3 import DraftLengths, OverlapOffsets, accept_greedy, accept_rejection, saved
from eagle3.mirror import Staging
from graphcheck.backend.protocol import Backend
from graphcheck.backend.resolve import resolve
from graphcheck.contract import contract_of

torch.set_num_threads(1)
VOCABULARY, DRAFT_LEN, BATCH = 11, 3, 8


GPU = pytest.param(
    "cuda",
    marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU: there is none"),
)


@pytest.fixture(params=["emulator", GPU])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    chosen = resolve(request.param)
    with chosen.active(), torch.no_grad():
        yield chosen


# The recording is made with one request; five, three, one and eight follow.
BATCHES = [[5], [122, 1, 300, 9, 16], [40, 41, 1], [7], [1, 2, 3, 4, 5, 6, 7, 8], [127, 128, 129]]


class Step:
    """Accepts and advances, by either rule."""

    def __init__(self, device: str, rejection: bool) -> None:
        self.rejection = rejection
        self.lengths = DraftLengths(BATCH, DRAFT_LEN, device)
        self.draft = torch.zeros(BATCH, DRAFT_LEN, dtype=torch.int64, device=device)
        self.target = torch.zeros(BATCH, 1 + DRAFT_LEN, dtype=torch.int64, device=device)
        self.q = torch.zeros(BATCH, DRAFT_LEN, VOCABULARY, device=device)
        self.p = torch.zeros(BATCH, 1 + DRAFT_LEN, VOCABULARY, device=device)
        self.uniforms = torch.zeros(BATCH, DRAFT_LEN + 1, device=device)
        self.tokens = torch.zeros(BATCH, 1 + DRAFT_LEN, dtype=torch.int64, device=device)

    def stage(self, seed: int, past: list[int]) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.lengths.stage(past)
        self.draft.copy_(torch.randint(0, 2, self.draft.shape, generator=generator))
        self.target.copy_(torch.randint(0, 2, self.target.shape, generator=generator))
        self.q.copy_(torch.softmax(torch.randn(self.q.shape, generator=generator), -1))
        self.p.copy_(torch.softmax(torch.randn(self.p.shape, generator=generator), -1))
        self.uniforms.copy_(torch.rand(self.uniforms.shape, generator=generator))
        # Rows behind the batch hold what no step must read.
        for tensor in (self.draft, self.target):
            tensor[len(past) :].fill_(2**40)
        for tensor in (self.q, self.p, self.uniforms):
            tensor[len(past) :].fill_(float("nan"))

    def run(self) -> dict[str, torch.Tensor]:
        lengths = self.lengths
        lengths.verify_lens()
        if self.rejection:
            rule = (self.draft, self.q, self.p, self.uniforms)
            accept_rejection(*rule, lengths.kv_lens, self.tokens, lengths.count)
        else:
            accept_greedy(self.draft, self.target, lengths.kv_lens, self.tokens, lengths.count)
        lengths.after_accept()
        for step in range(DRAFT_LEN):
            lengths.draft_advance(step)
        return {"tokens": self.tokens, **lengths.advanced()}


@pytest.mark.parametrize("rejection", [False, True], ids=["greedy", "rejection"])
def test_replays_equal_the_cpu(backend, rejection):
    step = Step("cuda", rejection)
    step.stage(0, [5])
    for _ in range(2):
        with saved(step.lengths.advanced()):
            step.run()
    before = {name: tensor.cpu().tolist() for name, tensor in step.lengths.tensors().items()}
    recording = backend.record(step.run, backend.pool())
    assert before == {name: tensor.cpu().tolist() for name, tensor in step.lengths.tensors().items()}
    seen = set()
    for seed, past in enumerate(BATCHES):
        host = Step("cpu", rejection)
        for each in (step, host):
            each.stage(seed, past)
        for _ in range(2):  # the second continues from the first
            recording.replay()
            backend.synchronize()
            expected = host.run()
            for name, tensor in expected.items():
                assert recording.outputs[name].cpu().tolist() == tensor.tolist(), name
            seen |= set(expected["count"].tolist())
    assert seen == set(range(DRAFT_LEN + 2))


def test_a_restore_inside_a_capture_is_no_part_of_the_record(backend):
    """The engine wraps each run in the same block: warm-ups leave no trace, and every replay advances."""
    lengths = DraftLengths(BATCH, DRAFT_LEN, "cuda")
    lengths.stage([5])
    lengths.count.copy_(torch.tensor([2] + [0] * (BATCH - 1), dtype=torch.int32))

    def region() -> dict[str, torch.Tensor]:
        with saved(lengths.advanced()):
            lengths.verify_lens()
            lengths.after_accept()
        return {}

    for _ in range(2):
        region()
    recording = backend.record(region, backend.pool())
    assert lengths.past.cpu().tolist()[0] == 5
    for past in (7, 9, 11):
        recording.replay()
        backend.synchronize()
        assert lengths.past.cpu().tolist()[0] == past
    assert list(recording.allocations()) == []


def test_lengths_ask_the_allocator_for_nothing(backend):
    lengths = DraftLengths(BATCH, DRAFT_LEN, "cuda")
    lengths.stage([5])

    def region() -> dict[str, torch.Tensor]:
        lengths.verify_lens()
        lengths.after_accept()
        lengths.draft_advance(0)
        return {}

    recording = backend.record(region, backend.pool())
    assert list(recording.allocations()) == []


def test_what_is_captured_carries_its_contract():
    from eagle3 import accept, lengths, overlap

    planned = (lengths.plan_verify, lengths.plan_draft, overlap.gather_offsets, overlap.correct_staged)
    for function in (accept_greedy, accept_rejection, accept.widen, *planned):
        assert contract_of(function) is not None


def test_a_correction_is_recorded_once_and_follows_every_count(backend):
    """Also in a bucket that is not full, and with the counts in the tensor that the step itself writes."""
    lengths, overlap = DraftLengths(BATCH, DRAFT_LEN, "cuda"), OverlapOffsets(BATCH, DRAFT_LEN, "cuda")
    counts = torch.zeros(BATCH, dtype=torch.int32, device="cuda")
    overlap.stage(Staging((118,), (0,), (4,)))

    def region() -> dict[str, torch.Tensor]:
        overlap.gather(counts)
        overlap.correct(lengths)
        counts.fill_(1)
        return {}

    recording = backend.record(region, backend.pool())
    poison = [77] * BATCH
    for batch in ([118], [1, 126, 300], [15, 16, 17, 31, 7, 8, 9, 10]):
        for kept in itertools.product(range(1, 5), repeat=min(len(batch), 2)):
            kept = (*kept, *[2] * (len(batch) - len(kept)))
            counts.copy_(torch.tensor([*kept, *poison[len(kept) :]], dtype=torch.int32))
            overlap.stage(Staging(tuple(batch), tuple(range(len(batch))), (4,) * len(batch)))
            recording.replay()
            backend.synchronize()
            true = DraftLengths(BATCH, DRAFT_LEN, "cpu")
            true.stage([past + count for past, count in zip(batch, kept, strict=True)])
            for name in ("past", "kv_lens", "positions"):
                assert getattr(lengths, name).cpu().tolist() == getattr(true, name).tolist(), name
