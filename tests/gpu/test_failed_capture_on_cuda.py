"""A capture that CUDA refuses leaves nothing behind: the next one, and eager code, are as in a fresh process."""

from __future__ import annotations

import torch

from graphcheck import fuzz
from graphcheck.finding import Verdict
from graphcheck.zoo.forbidden import ReadsLongest, Synchronises
from graphcheck.zoo.rows import MaskedSum


def test_the_next_component_passes_and_the_generator_draws() -> None:
    for planted, code in ((ReadsLongest, "GC102"), (Synchronises, "GC101")):
        assert fuzz(planted, backend="cuda", examples=5, seed=1).targets[0].findings[0].code == code
        torch.cuda.manual_seed(7)
        drawn = torch.rand(8, device="cuda")
        torch.cuda.manual_seed(7)
        assert torch.equal(torch.rand(8, device="cuda"), drawn)
        assert fuzz(MaskedSum, backend="cuda", examples=5, seed=1).targets[0].verdict is Verdict.PASS
    graph, out = torch.cuda.CUDAGraph(), torch.zeros(4, device="cuda")
    with torch.cuda.graph(graph):
        out.add_(1)
    graph.replay()
    assert out.tolist() == [1.0] * 4


def test_memory_given_out_after_a_refused_capture_is_of_no_graph() -> None:
    """Expected: a block of the default pool, which is what eager code gets."""
    fuzz(ReadsLongest, backend="cuda", examples=3, seed=1)
    block = torch.empty(3_000_000, device="cuda")
    pools = {
        tuple(segment["segment_pool_id"])
        for segment in torch.cuda.memory_snapshot()
        if segment["address"] <= block.data_ptr() < segment["address"] + segment["total_size"]
    }
    assert pools == {(0, 0)}
