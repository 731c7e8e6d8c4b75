"""Acceptance and lengths recorded once and replayed on other values: the same bits as on the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from eagle3 import DraftLengths, accept_greedy, accept_rejection, saved
from graphcheck.backend.emulator import EmulatorBackend
from graphcheck.contract import contract_of

torch.set_num_threads(1)
VOCABULARY, DRAFT_LEN, BATCH = 11, 3, 4


@pytest.fixture
def backend() -> Iterator[EmulatorBackend]:
    emulator = EmulatorBackend()
    with emulator.active(), torch.no_grad():
        yield emulator


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
    before = {name: tensor.tolist() for name, tensor in step.lengths.tensors().items()}
    recording = backend.record(step.run, backend.pool())
    assert before == {name: tensor.tolist() for name, tensor in step.lengths.tensors().items()}
    seen = set()
    for seed, past in enumerate([[5], [122, 1, 300, 9], [40, 41], [1, 2, 3], *[[7, 7, 7, 7]] * 4]):
        host = Step("cpu", rejection)
        for each in (step, host):
            each.stage(seed, past)
        for _ in range(2):  # the second continues from the first
            recording.replay()
            expected = host.run()
            for name, tensor in expected.items():
                assert recording.outputs[name].cpu().tolist() == tensor.tolist(), name
            seen |= set(expected["count"].tolist())
    assert seen == set(range(DRAFT_LEN + 2))


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
    from eagle3 import lengths

    for function in (accept_greedy, accept_rejection, lengths.plan_verify, lengths.plan_draft):
        assert contract_of(function) is not None
