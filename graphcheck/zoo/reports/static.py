"""Reports that only the source shows: the emulator runs every copy at once, and a swallowed capture replays nothing."""

from __future__ import annotations

from graphcheck.zoo.reports.entry import Snippet

_SAMPLING = """\
import torch


class Sampler:
    def __init__(self, rows):
        self.temperature_h = torch.ones(rows, pin_memory=True)
        self.temperature = torch.ones(rows, device="cuda")
        self.graph = torch.cuda.CUDAGraph()

    def serve(self, batches):
        for temperatures in batches:
{fill}
            self.temperature.copy_({source}, non_blocking=True)
            self.graph.replay()
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
            fill="            self.temperature_h.copy_(temperatures)",
            source="self.temperature_h",
        ),
        _SAMPLING.format(
            fill="            fresh = temperatures.pin_memory()",
            source="fresh",
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
