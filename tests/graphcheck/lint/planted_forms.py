"""Further forms of hazards, wrong and right, by code: what reaches the region through names, calls and other methods."""

from __future__ import annotations

import runpy
import textwrap
from pathlib import Path

SOURCES = runpy.run_path(str(Path(__file__).with_name("sources.py")))
region, runner = SOURCES["region"], SOURCES["runner"]

STEP = """
import torch
from graphcheck import Buffers, Component

class Step(Component):
    rate = 1.0

    def allocate(self, device):
        self.side = torch.cuda.Stream()
        self.lanes = [torch.cuda.Stream(), torch.cuda.Stream()]
        self.done = torch.cuda.Event()
        self.held = {}
        self.ready = False
        self.calls = 0
        self.layer = torch.nn.Linear(4, 4, device=device)
        self.layer.register_forward_hook(self.hook)
        self.pin = torch.zeros(4, pin_memory=True)
        return Buffers(
            x=torch.zeros(4, device=device), out=torch.zeros(4, device=device), total=torch.zeros(4, device=device)
        )

    def hook(self, *given):
        pass

    def stage(self, buffers, case):
        buffers.x.copy_(case.x)

    def run(self, buffers):
        buffers.out.copy_(buffers.x * 2)
        return {"out": buffers.out}

class Planted(Step):
"""

RUN = 'def run(self, buffers):\n    {}\n    return {{"out": buffers.out}}\n'

PINNED = """
import torch

class Runner:
    def __init__(self):
        self.graph = torch.cuda.CUDAGraph()
        self.host = torch.zeros(4, pin_memory=True)
        self.x = torch.zeros(4, device="cuda")

    def capture(self):
        with torch.cuda.graph(self.graph):
            self.x.copy_(self.host, non_blocking=True)

    def {method}(self):
        self.host = {held}
"""


def step(*methods: str) -> str:
    """A component with these methods in place of the plain ones."""
    return STEP + textwrap.indent("\n".join(methods), "    ")


def run(line: str) -> str:
    return RUN.format(line.replace("\n", "\n    "))


def stage(line: str) -> str:
    return f"def stage(self, buffers, case):\n    {line.replace(chr(10), chr(10) + '    ')}\n"


CASES: dict[str, list[tuple[str, str]]] = {
    "GC105": [
        (region("y = x[rows]", before="rows = [n for n in range(4)]"), region("y = x[rows]", before="rows = (0, 1)")),
        (region("y = x[:, sorted((2, 1))]"), region("y = x[:, slice(1, 2)]")),
    ],
    "GC111": [
        (
            region(
                "d = torch.cuda.default_stream()\nd.wait_stream(torch.cuda.current_stream())\nwith torch.cuda.stream(d):\n"
                "    out.copy_(x.sum(1))\ntorch.cuda.current_stream().wait_stream(d)"
            ),
            region("out.copy_(x.sum(1))", before="torch.cuda.default_stream().wait_stream(s)"),
        )
    ],
    "GC205": [
        (
            region("e.record()", before="e = torch.cuda.Event()", after="g.replay()\ne.query()"),
            region("e.record()", before="e = torch.cuda.Event()", after="g.replay()\ne.record()\ne.query()"),
        )
    ],
    "GC206": [
        (
            step(stage("with torch.cuda.stream(self.side):\n    buffers.x.copy_(case.x)")),
            step(
                stage(
                    "with torch.cuda.stream(self.side):\n    buffers.x.copy_(case.x)\n    self.done.record()\n"
                    "torch.cuda.current_stream().wait_event(self.done)"
                )
            ),
        )
    ],
    "GC304": [
        (
            runner(
                "if self.num_splits == 1:\n    self.out = self.x.sum(1)\nelse:\n    self.out = self.x.cumsum(1)[:, -1]",
                "def fit(self, lens):\n    self.num_splits = int(lens_cpu.max())",
            ),
            runner("if self.limit == 1:\n    self.out = self.x.sum(1)\nelse:\n    self.out = self.x.cumsum(1)[:, -1]"),
        )
    ],
    "GC307": [
        (
            "import torch\ndef quiet():\n    '''Whether a stream captures.'''\n    return torch.cuda.is_current_stream_capturing()\n"
            "def build(g, x: torch.Tensor, out: torch.Tensor):\n    with torch.cuda.graph(g):\n        y = x * 2\n"
            "        if not quiet():\n            y = y + 1\n        out.copy_(y)\n",
            "import torch\ndef quiet():\n    return torch.cuda.is_available()\n"
            "def build(g, x: torch.Tensor, out: torch.Tensor):\n    with torch.cuda.graph(g):\n        y = x * 2\n"
            "        if not quiet():\n            y = y + 1\n        out.copy_(y)\n",
        )
    ],
    "GC308": [
        (
            step(stage("self.held.clear()\nbuffers.x.copy_(case.x)"), run("self.held['out'] = buffers.out")),
            step(stage("buffers.x.copy_(case.x)"), run("held = {}\nheld['out'] = buffers.out")),
        )
    ],
    "GC309": [
        (
            step(
                run("buffers.out.copy_(buffers.x * self.rate)"),
                "def observe(self, buffers, outputs):\n    self.rate *= 0.5",
            ),
            step(
                run("buffers.out.copy_(buffers.x * self.rate)"),
                "def observe(self, buffers, outputs):\n    self.calls += 1",
            ),
        )
    ],
    "GC310": [
        (
            step(stage("buffers.x.copy_(case.x)\ntorch.set_autocast_enabled('cuda', case.half)")),
            step(stage("buffers.x.copy_(case.x)\ntorch.set_autocast_enabled('cuda', True)")),
        )
    ],
    "GC311": [
        (
            step(
                "def key(self, case):\n    return case.size\n",
                stage("buffers.x.copy_(case.x)\nself.width = int(case.width)"),
                run("buffers.out.copy_(buffers.x[: self.width].sum())"),
            ),
            step(
                "def key(self, case):\n    return case.size, case.width\n",
                stage("buffers.x.copy_(case.x)\nself.width = int(case.width)"),
                run("buffers.out.copy_(buffers.x[: self.width].sum())"),
            ),
        )
    ],
    "GC313": [
        (
            step("def hook(self, *given):\n    self.calls += 1\n", run("buffers.out.copy_(self.layer(buffers.x))")),
            step("def hook(self, *given):\n    self.calls += 1\n", run("buffers.out.copy_(buffers.x)")),
        )
    ],
    "GC406": [
        (
            step(
                run(
                    "if not self.ready:\n    buffers.total.copy_(buffers.x)\n    self.ready = True\nbuffers.out.copy_(buffers.total)"
                )
            ),
            step(
                run(
                    "self.ready = False\nif not self.ready:\n    buffers.total.copy_(buffers.x)\nbuffers.out.copy_(buffers.total)"
                )
            ),
        )
    ],
    "GC407": [
        (
            step(
                stage("self.pin = torch.ones(4).pin_memory()\nbuffers.x.copy_(case.x)"),
                run("buffers.out.copy_(self.pin, non_blocking=True)"),
            ),
            step(
                stage("buffers.x.copy_(case.x)\nself.pin.copy_(case.x)"),
                run("buffers.out.copy_(self.pin, non_blocking=True)"),
            ),
        ),
        (
            PINNED.format(held="torch.ones(4).pin_memory()", method="refresh"),
            PINNED.format(held="self.host", method="refresh"),
        ),
    ],
    "GC408": [
        (
            step(
                stage("self.pin.copy_(case.x)\nbuffers.x.copy_(case.x)"),
                run("buffers.out.copy_(self.pin, non_blocking=True)"),
            ),
            step(
                stage("self.done.synchronize()\nself.pin.copy_(case.x)"),
                run("buffers.out.copy_(self.pin, non_blocking=True)"),
                "def observe(self, buffers, outputs):\n    self.done.record()\n",
            ),
        )
    ],
    "GC410": [
        (
            region("y = x * 2\nv = y.view(-1)\ny.untyped_storage().resize_(0)\nout.copy_(v[:8])"),
            region("y = x * 2\nout.copy_(y.sum(1))\ny.untyped_storage().resize_(0)\ny = x * 3\nout.copy_(y.sum(1))"),
        )
    ],
    "GC503": [
        (
            step(
                "def key(self, case):\n    return case.size\n",
                stage("torch.cuda.set_stream(self.lanes[case.size])\nbuffers.x.copy_(case.x)"),
            ),
            step(
                "def key(self, case):\n    return case.size\n",
                stage("torch.cuda.set_stream(self.side)\nbuffers.x.copy_(case.x)"),
            ),
        )
    ],
    "GC602": [
        (
            step(
                run(
                    "if not self.ready:\n    torch.cumsum(buffers.x, 0, out=buffers.total)\n    self.ready = True\nbuffers.out.copy_(buffers.total)"
                )
            ),
            step(
                run(
                    "if not self.ready:\n    torch.ones(4, out=buffers.total)\n    self.ready = True\nbuffers.out.copy_(buffers.total)"
                )
            ),
        )
    ],
    "GC603": [
        (
            step(
                "warmup = 0\n",
                run(
                    "if not self.ready:\n    buffers.total.zero_()\n    self.ready = True\nbuffers.total.add_(buffers.x)\nbuffers.out.copy_(buffers.total)"
                ),
            ),
            step(
                "warmup = 0\n",
                run(
                    "if not self.ready:\n    self.ready = True\nbuffers.total.add_(buffers.x)\nbuffers.out.copy_(buffers.total)"
                ),
            ),
        )
    ],
}
