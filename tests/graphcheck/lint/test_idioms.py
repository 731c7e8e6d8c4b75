"""Idioms of serving engines that are right, and must stay silent."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from graphcheck.lint import Settings, lint

IDIOMS = {
    "one graph a bucket, largest first, one pool": """
        import torch

        class Runner:
            def __init__(self, model, sizes, width):
                self.model, self.sizes, self.width = model, sizes, width
                self.graphs = {}
                self.pool = None
                torch.set_default_device("cuda")

            @torch.inference_mode()
            def capture(self):
                most = max(self.sizes)
                tokens = torch.zeros(most, dtype=torch.int64)
                slots = torch.zeros(most, dtype=torch.int32)
                hidden = torch.zeros(most, self.width)
                for size in sorted(self.sizes, reverse=True):
                    graph = torch.cuda.CUDAGraph()
                    hidden[:size] = self.model(tokens[:size], slots[:size])
                    with torch.cuda.graph(graph, self.pool):
                        hidden[:size] = self.model(tokens[:size], slots[:size])
                    if self.pool is None:
                        self.pool = graph.pool()
                    self.graphs[size] = graph
                    torch.cuda.synchronize()
                self.static = dict(tokens=tokens, slots=slots, hidden=hidden)

            def step(self, tokens, slots):
                size = tokens.size(0)
                graph = self.graphs[next(s for s in self.sizes if s >= size)]
                static = self.static
                static["tokens"][:size] = tokens
                static["slots"].fill_(-1)
                static["slots"][:size] = slots
                graph.replay()
                return self.model.logits(static["hidden"][:size])
    """,
    "a wrapper that captures on first use of a key": """
        import torch

        class Wrapper:
            def __init__(self, runnable, pool):
                self.runnable, self.pool = runnable, pool
                self.entries = {}

            def __call__(self, key, *args):
                entry = self.entries.get(key)
                if entry is None:
                    graph = torch.cuda.CUDAGraph()
                    with torch.cuda.graph(graph, pool=self.pool):
                        output = self.runnable(*args)
                    self.entries[key] = (graph, output, args)
                    return output
                graph, output, _ = entry
                graph.replay()
                return output
    """,
    "warm-up on a side stream, then capture": """
        import torch

        def build(model, loss_fn, optimizer):
            x = torch.randn(8, 16, device="cuda")
            y = torch.randn(8, 1, device="cuda")
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    optimizer.zero_grad(set_to_none=True)
                    loss = loss_fn(model(x), y)
                    loss.backward()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                loss = loss_fn(model(x), y)
                loss.backward()
                optimizer.step()
            return graph, x, y, loss

        def train(graph, x, y, loss, batches):
            for data, target in batches:
                x.copy_(data)
                y.copy_(target)
                graph.replay()
                print(loss.item())
    """,
    "shape arithmetic, optional arguments and masks": """
        import torch
        from graphcheck import capture_safe

        @capture_safe(dynamic=("q", "k", "lens"), static=("scale", "window"), out=("out",))
        def attend(q: torch.Tensor, k: torch.Tensor, lens: torch.Tensor, out: torch.Tensor,
                   bias: torch.Tensor | None = None, scale: float = 1.0, window: int = 0):
            rows, heads, dim = q.shape
            assert k.shape[-1] == dim, f"{k.shape} and {q.shape}"
            logits = torch.einsum("rhd,thd->rht", q, k) * scale
            if bias is not None:
                logits = logits + bias
            positions = torch.arange(k.shape[0], device=q.device)
            hidden = positions >= lens[:, None]
            if window:
                hidden = hidden | (positions < lens[:, None] - window)
            logits = logits.masked_fill(hidden[:, None], float("-inf"))
            for head in range(heads):
                out[:, head].copy_(logits[:, head].softmax(-1) @ k[:, head])
    """,
    "fork and join over events": """
        import torch

        class Overlapped:
            def __init__(self, a, b):
                self.a, self.b = a, b
                self.side = torch.cuda.Stream()
                self.started = torch.cuda.Event()
                self.done = torch.cuda.Event()
                self.x = torch.zeros(4, device="cuda")

            def region(self):
                current = torch.cuda.current_stream()
                self.started.record(current)
                with torch.cuda.stream(self.side):
                    self.side.wait_event(self.started)
                    right = self.b(self.x)
                    self.done.record(self.side)
                left = self.a(self.x)
                current.wait_event(self.done)
                return left + right

            def capture(self, graph):
                with torch.cuda.graph(graph):
                    self.out = self.region()
    """,
    "a Triton launch over static sizes": """
        import torch, triton
        import triton.language as tl

        @triton.jit
        def scale_kernel(x, y, n, BLOCK: tl.constexpr):
            offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            mask = offsets < n
            if tl.load(x) > 0:
                tl.store(y + offsets, tl.load(x + offsets, mask=mask), mask=mask)

        def step(x: torch.Tensor, y: torch.Tensor):
            n = x.numel()
            scale_kernel[(triton.cdiv(n, 128),)](x, y, n, BLOCK=128)
            return y

        def build(x: torch.Tensor, y: torch.Tensor):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step(x, y)
            return graph, x, y
    """,
    "host work before and behind the region": """
        import torch

        class Loop:
            def __init__(self):
                self.graph = torch.cuda.CUDAGraph()
                self.lens = torch.zeros(8, dtype=torch.int32, device="cuda")
                self.staging = torch.zeros(8, dtype=torch.int32, pin_memory=True)
                self.steps = 0
                self.history = []

            def capture(self):
                torch.cuda.synchronize()
                with torch.cuda.graph(self.graph):
                    self.total = self.lens.sum()

            def step(self, lens):
                self.staging.fill_(0)
                self.staging[: len(lens)] = torch.tensor(lens, dtype=torch.int32)
                self.lens.copy_(self.staging, non_blocking=True)
                self.graph.replay()
                self.steps += 1
                self.history.append(int(self.total.item()))
    """,
}


@pytest.mark.parametrize("idiom", IDIOMS)
def test_a_right_idiom_is_silent(idiom: str, tmp_path: Path) -> None:
    path = tmp_path / "idiom.py"
    path.write_text(textwrap.dedent(IDIOMS[idiom]))
    result = lint([path], Settings())
    assert [f"{found.where}: {found.code} {found.message}" for found in result.findings] == []
    assert result.regions >= 1
