"""CUDA graphs of speculative steps: warmed up without a trace, captured into one pool, reported where that fails."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from eagle3.routing import Bucket, Buckets
from eagle3.step import SpeculativeStep
from eagle3.warmup import saved

WARMUPS = 2


class StepGraphs:
    """The graphs of an engine's buckets.

    Args:
        steps: by bucket, at rest: every length is 0, so that warm-ups write to the dummy slot only.
        buckets: told what became of each.

    Raises:
        BucketsNotCaptured: a bucket has no graph, and eager steps are not allowed.
    """

    def __init__(self, steps: Mapping[Bucket, SpeculativeStep], buckets: Buckets) -> None:
        self._graphs: dict[Bucket, torch.cuda.CUDAGraph] = {}
        self._pool: Any = None
        # The largest first: the smaller ones find their memory in the pool.
        for bucket in sorted(steps, key=lambda bucket: bucket.batch, reverse=True):
            try:
                self._graphs[bucket] = self._capture(steps[bucket])
            except RuntimeError as error:
                buckets.fail(bucket, _reason(error))
            else:
                buckets.succeed(bucket)
        if not buckets.allow_eager:
            buckets.check()

    def replay(self, bucket: Bucket) -> None:
        """The bucket's step has run once, on the current stream."""
        self._graphs[bucket].replay()

    def _capture(self, step: SpeculativeStep) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUPS):
                with saved(step.advanced()):
                    step.run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=stream):
            step.run()
        self._pool = self._pool or graph.pool()
        return graph


def _reason(error: RuntimeError) -> str:
    """What went wrong, in one line: leaving a capture that failed raises once more, and says less than the first."""
    first = error.__context__
    if isinstance(first, RuntimeError) and not error.__suppress_context__:
        error = first
    return (str(error).splitlines() or [type(error).__name__])[0]
