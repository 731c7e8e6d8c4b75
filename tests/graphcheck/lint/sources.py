"""Small sources around a captured region: a function, a class, a component."""

from __future__ import annotations

import textwrap

HEAD = """
import torch
import torch.nn.functional as F

def build(model):
    g = torch.cuda.CUDAGraph()
    x = torch.zeros(8, 16, device="cuda")
    lens = torch.zeros(8, dtype=torch.int32, device="cuda")
    out = torch.zeros(8, device="cuda")
    s = torch.cuda.Stream()
"""

TAIL = """
    g.replay()
    return g, x, lens, out, s
"""


def region(body: str, before: str = "", after: str = "") -> str:
    """A function that captures ``body``, with code before and behind the region."""
    inner = textwrap.indent(textwrap.dedent(body).strip("\n"), "        ")
    outer = textwrap.indent(textwrap.dedent(before).strip("\n"), "    ")
    behind = textwrap.indent(textwrap.dedent(after).strip("\n"), "    ")
    return f"{HEAD}{outer}\n    with torch.cuda.graph(g):\n{inner}\n{behind}{TAIL}"


RUNNER = """
import torch

class Runner:
    def __init__(self):
        self.graph = torch.cuda.CUDAGraph()
        self.x = torch.zeros(8, 16, device="cuda")
        self.lens = torch.zeros(8, dtype=torch.int32, device="cuda")
        self.layer = torch.nn.Linear(16, 16, device="cuda")
        self.scale = 1.0
        self.limit = 16
        self.work = torch.zeros(4, device="cuda")
        self.kept = []

    def capture(self):
        with torch.cuda.graph(self.graph):
{body}

    def replay(self, x):
        self.x.copy_(x)
        self.graph.replay()
        return self.out.clone()
"""


def runner(body: str, method: str = "") -> str:
    """A class that captures ``body``, with one more method."""
    inner = textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 12)
    return RUNNER.format(body=inner) + textwrap.indent(textwrap.dedent(method), "    ")


COMPONENT = """
import torch
from graphcheck import Buffers, Component

class Step(Component):
    warmup = 0

    def allocate(self, device):
        self.total = None
        return Buffers(x=torch.zeros(4, device=device), out=torch.zeros(4, device=device))

    def stage(self, buffers, case):
        buffers.x.copy_(case.x)

    def run(self, buffers):
{body}
        return {{"out": buffers.out}}
"""


def component(body: str) -> str:
    """A component without warm-up whose region is ``body``."""
    return COMPONENT.format(body=textwrap.indent(body, " " * 8))
