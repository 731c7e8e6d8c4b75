"""Reports that only the source shows: the emulator runs every copy at once, and a swallowed capture replays nothing."""

from __future__ import annotations

from graphcheck.zoo.reports.entry import Snippet

_SAMPLING = """\
import torch


def serve(sample, logits, batches):
    temperature_h = torch.ones(8, pin_memory=True)
    temperature = torch.ones(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
{captured}
    for temperatures in batches:
{refreshed}
        graph.replay()
"""

_CAPTURE = """\
import torch


class Buckets:
    def __init__(self, step):
        self.step = step
        self.graphs = {}

    def capture_all(self, sizes):
        for size in sizes:
            graph = torch.cuda.CUDAGraph()
"""

STATIC = [
    Snippet(
        "GC408",
        "b029-sampling-buffer-refilled-while-queued",
        _SAMPLING.format(
            captured="""\
        temperature.copy_(temperature_h, non_blocking=True)
        tokens = sample(logits, temperature)""",
            refreshed="""\
        temperature_h.copy_(temperatures)""",
        ),
        _SAMPLING.format(
            captured="""\
        tokens = sample(logits, temperature)""",
            refreshed="""\
        fresh = temperatures.pin_memory()
        temperature.copy_(fresh, non_blocking=True)""",
        ),
        "the host fills the pinned buffer of the next step while the previous step's copy is still queued",
    ),
    Snippet(
        "GC608",
        "b099-bucket-never-captured",
        _CAPTURE
        + """\
            try:
                with torch.cuda.graph(graph):
                    self.step(size)
            except Exception:
                print("no graph for", size)
                continue
            self.graphs[size] = graph
""",
        _CAPTURE
        + """\
            with torch.cuda.graph(graph):
                self.step(size)
            self.graphs[size] = graph
""",
        "a failed dummy batch is logged once, and its bucket runs eagerly for ever",
    ),
]
