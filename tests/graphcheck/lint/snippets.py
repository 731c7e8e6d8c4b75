"""Smallest wrong and right sources, by code. ``REGION`` marks what stands inside ``with torch.cuda.graph(g):``."""

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


CASES: dict[str, list[tuple[str, str]]] = {
    "GC101": [
        (
            region("torch.cuda.synchronize()\nout.copy_(x.sum(1))"),
            region("out.copy_(x.sum(1))", after="torch.cuda.synchronize()"),
        ),
        (region("s.synchronize()"), region("out.zero_()", before="s.synchronize()")),
    ],
    "GC102": [
        (region("n = lens.max().item()"), region("n = lens.max()")),
        (region("print(x.sum())"), region("out.copy_(x.sum(1))", after="print(x.sum())")),
        (region("host = x.to('cpu')"), region("half = x.to(torch.float16)")),
        (region("words = f'{x.sum()}'"), region("words = f'{x.shape}'")),
        (region("if torch.equal(x, x): pass"), region("same = torch.eq(x, x)")),
    ],
    "GC103": [
        (region("t = torch.tensor([1, 2], device='cuda')"), region("t = torch.full((2,), 1, device='cuda')")),
        (region("t = torch.arange(4).to('cuda')"), region("t = torch.arange(4, device='cuda')")),
    ],
    "GC104": [
        (region("if x.isnan().any():\n    x.zero_()"), region("out.copy_(torch.where(x.isnan().any(), 0, x.sum(1)))")),
        (region("y = max(x.sum(), out.sum())"), region("y = torch.maximum(x.sum(), out.sum())")),
        (region("assert (lens > 0).all()"), region("torch._assert_async((lens > 0).all())")),
        (region("y = x if lens.sum() > 3 else -x"), region("y = x if model is None else -x")),
    ],
    "GC105": [
        (region("y = x[[0, 2]]"), region("y = x.index_select(0, lens)")),
        (region("x[0] = 1.0"), region("x[0].fill_(1.0)")),
    ],
    "GC106": [
        (region("y = x[:, : lens.max()]"), region("y = x[:, :8]")),
        (region("y = torch.tensor_split(x, lens)"), region("y = torch.tensor_split(x, 2)")),
    ],
    "GC107": [
        (region("y = x[x > 0].sum()"), region("y = torch.where(x > 0, x, 0).sum()")),
        (region("i = torch.nonzero(lens)"), region("i = torch.nonzero_static(lens, size=8)")),
        (region("h = F.one_hot(lens.long())"), region("h = F.one_hot(lens.long(), num_classes=9)")),
        (
            region("r = torch.repeat_interleave(x, lens, dim=0)"),
            region("r = torch.repeat_interleave(x, lens, dim=0, output_size=64)"),
        ),
    ],
    "GC108": [(region("done = s.query()"), region("out.zero_()", after="done = s.query()"))],
    "GC109": [
        (
            region("out.zero_()", before="loader = torch.utils.data.DataLoader(model, pin_memory=True)"),
            region("out.zero_()", before="loader = torch.utils.data.DataLoader(model)"),
        )
    ],
    "GC110": [
        (
            region("b = torch.empty(4, pin_memory=True)"),
            region("out.zero_()", before="b = torch.empty(4, pin_memory=True)"),
        )
    ],
    "GC111": [
        (
            region("model(x).sum().backward()", before="ddp = torch.nn.parallel.DistributedDataParallel(model)"),
            region(
                "model(x).sum().backward()",
                before="with torch.cuda.stream(s):\n    ddp = torch.nn.parallel.DistributedDataParallel(model)",
            ),
        )
    ],
    "GC201": [
        (
            region("with torch.cuda.stream(s):\n    out.copy_(x.sum(1))\ntorch.cuda.current_stream().wait_stream(s)"),
            region(
                "s.wait_stream(torch.cuda.current_stream())\nwith torch.cuda.stream(s):\n    out.copy_(x.sum(1))\n"
                "torch.cuda.current_stream().wait_stream(s)"
            ),
        )
    ],
    "GC202": [
        (
            region("s.wait_stream(torch.cuda.current_stream())\nwith torch.cuda.stream(s):\n    out.copy_(x.sum(1))"),
            region(
                "cur = torch.cuda.current_stream()\ns.wait_stream(cur)\nwith torch.cuda.stream(s):\n"
                "    out.copy_(x.sum(1))\ncur.wait_stream(s)"
            ),
        )
    ],
    "GC203": [
        (
            region("torch.cuda.current_stream().wait_stream(s)"),
            region("out.zero_()", before="torch.cuda.current_stream().wait_stream(s)"),
        ),
    ],
    "GC204": [
        (
            region("with torch.cuda.stream(s):\n    out.copy_(x.sum(1))"),
            region("with torch.cuda.stream(torch.cuda.current_stream()):\n    out.copy_(x.sum(1))"),
        ),
        (
            region("import cupy\ncupy.add(x, x)"),
            region(
                "import cupy\nwith cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):\n    cupy.add(x, x)"
            ),
        ),
    ],
    "GC205": [
        (
            region("e.record()", before="e = torch.cuda.Event()", after="e.synchronize()"),
            region("e.record()", before="e = torch.cuda.Event(external=True)", after="e.synchronize()"),
        )
    ],
    "GC206": [
        (
            region("out.copy_(x.sum(1))", after="with torch.cuda.stream(s):\n    x.copy_(model)\ng.replay()"),
            region(
                "out.copy_(x.sum(1))",
                after="with torch.cuda.stream(s):\n    x.copy_(model)\ntorch.cuda.current_stream().wait_stream(s)\ng.replay()",
            ),
        )
    ],
    "GC301": [
        (
            runner("self.out = self.x * self.scale", "def set_scale(self, scale):\n    self.scale = scale"),
            runner("self.out = self.x * self.scale"),
        ),
        (
            region("out.copy_(x.sum(1) / t)", before="t = 1.0", after="for t in (1.0, 2.0):\n    g.replay()"),
            region("out.copy_(x.sum(1) / t)", before="t = 1.0"),
        ),
        (
            "import torch\nfrom graphcheck import capture_safe\n@capture_safe(dynamic=('x',), out=('out',))\n"
            "def f(x: torch.Tensor, t: float, out: torch.Tensor):\n    out.copy_(x / t)\n",
            "import torch\nfrom graphcheck import capture_safe\n@capture_safe(dynamic=('x',), static=('t',), out=('out',))\n"
            "def f(x: torch.Tensor, t: float, out: torch.Tensor):\n    out.copy_(x / t)\n",
        ),
    ],
    "GC302": [
        (
            runner(
                "self.out = self.x[:, : self.limit].sum(1)", "def fit(self, lens):\n    self.limit = int(max(lens))"
            ),
            runner("self.out = self.x[:, : self.limit].sum(1)"),
        ),
        (
            region("y = model.attend(x, max_seqlen_k=int(lens_cpu.max()))", before="lens_cpu = lens.cpu()"),
            region("y = model.attend(x, max_seqlen_k=4096)"),
        ),
    ],
    "GC303": [
        (
            runner(
                "self.out = self.x * 2\nif self.limit > 8:\n    self.out = self.out + 1",
                "def fit(self, limit):\n    self.limit = limit",
            ),
            runner("self.out = self.x * 2\nif self.limit > 8:\n    self.out = self.out + 1"),
        )
    ],
    "GC304": [
        (
            region("n = model.num_splits_heuristic(int(lens_cpu.max()))", before="lens_cpu = lens.cpu()"),
            region("n = model.num_splits_heuristic(64)"),
        )
    ],
    "GC305": [
        (
            region(
                "out.copy_(w.run(x))",
                before="w = model.wrapper()\nw.plan(lens)",
                after="for batch in model:\n    x.copy_(batch)\n    g.replay()",
            ),
            region(
                "out.copy_(w.run(x))",
                before="w = model.wrapper()\nw.plan(lens)",
                after="for batch in model:\n    x.copy_(batch)\n    w.plan(lens)\n    g.replay()",
            ),
        )
    ],
    "GC306": [
        (
            region("p = torch.tensor([x.data_ptr(), out.data_ptr()], device='cuda')"),
            region("out.zero_()", before="p = torch.tensor([x.data_ptr(), out.data_ptr()], device='cuda')"),
        )
    ],
    "GC307": [
        (
            region("y = x * 2\nif not torch.cuda.is_current_stream_capturing():\n    y = y + 1\nout.copy_(y.sum(1))"),
            region(
                "if not torch.cuda.is_current_stream_capturing():\n    assert (lens > 0).all()\nout.copy_(x.sum(1))"
            ),
        ),
    ],
    "GC308": [
        (
            "import torch\nclass M(torch.nn.Module):\n    def forward(self, x: torch.Tensor):\n        self.last = x * 2\n"
            "        return self.last\nm = torch.cuda.make_graphed_callables(M(), ())\n",
            "import torch\nclass M(torch.nn.Module):\n    def forward(self, x: torch.Tensor):\n        last = x * 2\n"
            "        return last\nm = torch.cuda.make_graphed_callables(M(), ())\n",
        ),
        (
            runner("self.out = self.x * 2\nself.kept.append(self.out)"),
            runner("self.out = self.x * 2\nkept = []\nkept.append(self.out)"),
        ),
    ],
    "GC309": [
        (
            region("opt.step()", before="opt = torch.optim.Adam(model.parameters())"),
            region("opt.step()", before="opt = torch.optim.Adam(model.parameters(), capturable=True)"),
        )
    ],
    "GC310": [
        (
            region(
                "out.zero_()",
                before="import copy\nmodel.force = True\nmeta = copy.copy(model)",
                after="model.force = False",
            ),
            region(
                "out.zero_()",
                before="import copy\nmeta = copy.copy(model)\nmodel.force = True",
                after="model.force = False",
            ),
        )
    ],
    "GC311": [
        (
            "import torch\ngraphs = {}\ndef capture(bs: int, width: int, x: torch.Tensor):\n    g = torch.cuda.CUDAGraph()\n"
            "    with torch.cuda.graph(g):\n        y = x[:bs, :width].sum()\n    graphs[bs] = g\n    return x, y\n",
            "import torch\ngraphs = {}\ndef capture(bs: int, width: int, x: torch.Tensor):\n    g = torch.cuda.CUDAGraph()\n"
            "    with torch.cuda.graph(g):\n        y = x[:bs, :width].sum()\n    graphs[bs, width] = g\n    return x, y\n",
        )
    ],
    "GC312": [
        (
            region("out.copy_(x[-4:].sum())", after="x[:4].copy_(model)"),
            region("out.copy_(x[:4].sum())", after="x[:4].copy_(model)"),
        )
    ],
    "GC313": [
        (
            "import torch\nfrom torch import nn\ndef build(net, hook, x):\n    net.inner.register_forward_hook(hook)\n"
            "    return torch.cuda.make_graphed_callables(net, (x,))\n",
            "import torch\nfrom torch import nn\ndef build(net, hook, x):\n    net.register_forward_hook(hook)\n"
            "    return torch.cuda.make_graphed_callables(net, (x,))\n",
        )
    ],
    "GC401": [
        (
            region("out.copy_(x.sum(1))", after="for batch in model:\n    x = batch.cuda()\n    g.replay()"),
            region("out.copy_(x.sum(1))", after="for batch in model:\n    x.copy_(batch)\n    g.replay()"),
        ),
        (
            runner("self.out = self.x * 2", "def refresh(self, x):\n    self.x = x.cuda()"),
            runner("self.out = self.x * 2", "def refresh(self, x):\n    self.x.copy_(x)"),
        ),
    ],
    "GC402": [
        (
            "import torch\ndef make():\n    g = torch.cuda.CUDAGraph()\n    x = torch.ones(4, device='cuda')\n"
            "    with torch.cuda.graph(g):\n        y = x * 2\n    return g, y\n",
            "import torch\ndef make():\n    g = torch.cuda.CUDAGraph()\n    x = torch.ones(4, device='cuda')\n"
            "    with torch.cuda.graph(g):\n        y = x * 2\n    return g, x, y\n",
        )
    ],
    "GC403": [
        (
            runner("self.out = self.x @ self.layer.weight", "def reload(self, w):\n    self.layer.weight.data = w"),
            runner(
                "self.out = self.x @ self.layer.weight", "def reload(self, w):\n    self.layer.weight.data.copy_(w)"
            ),
        )
    ],
    "GC404": [
        (
            runner(
                "self.out = self.work * 2",
                "def reserve(self, need):\n    if self.work.numel() < need:\n        self.work = torch.empty(need, device='cuda')",
            ),
            runner(
                "self.out = self.work * 2",
                "def reserve(self, need):\n    if self.work.numel() < need:\n        self.graph = None\n"
                "        self.work = torch.empty(need, device='cuda')",
            ),
        )
    ],
    "GC405": [
        (
            "import functools, torch\n@functools.lru_cache\ndef scratch():\n    return torch.empty(4, device='cuda')\n"
            "def build(x):\n    g = torch.cuda.CUDAGraph()\n    with torch.cuda.graph(g):\n        y = x + scratch()\n    return g, y\n",
            "import functools, torch\n@functools.lru_cache\ndef scratch():\n    return torch.empty(4, device='cuda')\n"
            "def build(x):\n    g = torch.cuda.CUDAGraph()\n    work = scratch()\n    with torch.cuda.graph(g):\n        y = x + work\n"
            "    return g, y, work\n",
        ),
        (
            runner(
                "self.out = self.step()",
                "def step(self):\n    if self.tmp is None:\n        self.tmp = torch.empty(4, device='cuda')\n    return self.tmp * 2",
            ),
            runner(
                "self.out = self.step()", "def step(self):\n    tmp = torch.empty(4, device='cuda')\n    return tmp * 2"
            ),
        ),
    ],
    "GC406": [
        (
            "import torch\ndef build(model, x):\n    g = torch.cuda.CUDAGraph()\n    with torch.autocast('cuda'):\n"
            "        with torch.cuda.graph(g):\n            y = model(x)\n    return g, x, y\n",
            "import torch\ndef build(model, x):\n    g = torch.cuda.CUDAGraph()\n    with torch.autocast('cuda', cache_enabled=False):\n"
            "        with torch.cuda.graph(g):\n            y = model(x)\n    return g, x, y\n",
        )
    ],
    "GC407": [
        (
            region("x.copy_(torch.ones(8, 16).pin_memory(), non_blocking=True)"),
            region("x.copy_(pin, non_blocking=True)", before="pin = torch.ones(8, 16).pin_memory()"),
        )
    ],
    "GC408": [
        (
            region(
                "x.copy_(pin, non_blocking=True)",
                before="pin = torch.ones(8, 16).pin_memory()",
                after="for i in range(9):\n    pin.fill_(i)\n    g.replay()",
            ),
            region(
                "x.copy_(pin, non_blocking=True)",
                before="pin = torch.ones(8, 16).pin_memory()",
                after="for i in range(9):\n    pin.fill_(i)\n    g.replay()\n    torch.cuda.synchronize()",
            ),
        )
    ],
    "GC410": [
        (region("v = x.sum()\nx.resize_(0)\nout.copy_(x.sum(1))"), region("out.copy_(x.sum(1))\nx.resize_(0)")),
    ],
    "GC501": [
        (
            region("y = x * 2", after="outs = []\nfor i in range(3):\n    g.replay()\n    outs.append(y)"),
            region("y = x * 2", after="outs = []\nfor i in range(3):\n    g.replay()\n    outs.append(y.clone())"),
        )
    ],
    "GC502": [
        (
            region(
                "y = x * 2",
                after="h = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(h, pool=g.pool()):\n    z = x + 1\ng.replay()\nh.replay()\nprint(y)",
            ),
            region(
                "y = x * 2",
                after="h = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(h, pool=g.pool()):\n    z = x + 1\nh.replay()\nprint(z)\ng.replay()\nprint(y)",
            ),
        )
    ],
    "GC503": [
        (
            region("y = x * 2", after="import threading\nt = threading.Thread(target=g.replay)"),
            region("y = x * 2", after="import threading\nt = threading.Thread(target=model.log)"),
        )
    ],
    "GC505": [
        (
            "import torch\nfrom graphcheck import capture_safe\n@capture_safe(dynamic=('x',), out=('out',), workspace=('w',))\n"
            "def f(x, out, w):\n    out.copy_((x * 2).softmax(1))\n",
            "import torch\nfrom graphcheck import capture_safe\n@capture_safe(dynamic=('x',), out=('out',), workspace=('w',))\n"
            "def f(x, out, w):\n    torch.mul(x, 2, out=w)\n    torch.softmax(w, 1, out=out)\n",
        )
    ],
    "GC601": [
        (region("f = torch.compile(model)\ny = f(x)"), region("y = f(x)", before="f = torch.compile(model)")),
    ],
    "GC602": [
        (
            runner(
                "self.out = self.step()",
                "def step(self):\n    if self.plan is None:\n        self.plan = self.lens.cumsum(0)\n    return self.plan * 2",
            ),
            runner("self.out = self.step()", "def step(self):\n    plan = self.lens.cumsum(0)\n    return plan * 2"),
        )
    ],
    "GC604": [
        (
            region("lens.add_(1)\nout.copy_(lens)", before="for _ in range(2):\n    lens.add_(1)"),
            region("lens.add_(1)\nout.copy_(lens)", before="for _ in range(2):\n    lens.add_(1)\nlens.copy_(model)"),
        )
    ],
    "GC607": [
        (region("y = x * 2", after="print(y.sum())"), region("y = x * 2", after="g.replay()\nprint(y.sum())")),
    ],
    "GC608": [
        (
            "import torch\ndef build(model, x):\n    g = torch.cuda.CUDAGraph()\n    try:\n        with torch.cuda.graph(g):\n"
            "            y = model(x)\n    except RuntimeError:\n        pass\n    return g, x\n",
            "import torch\ndef build(model, x):\n    g = torch.cuda.CUDAGraph()\n    try:\n        with torch.cuda.graph(g):\n"
            "            y = model(x)\n    except RuntimeError as error:\n        raise ValueError('capture failed') from error\n    return g, x\n",
        )
    ],
    "GC702": [
        (
            region(
                "out.copy_(x.sum(1))",
                after="for rows in model:\n    n = len(rows)\n    x[:n].copy_(rows)\n    g.replay()",
            ),
            region(
                "out.copy_(x.sum(1))",
                after="for rows in model:\n    n = len(rows)\n    x[:n].copy_(rows)\n    x[n:].zero_()\n    g.replay()",
            ),
        )
    ],
    "GC703": [
        (
            runner("self.x.index_put_((self.lens,), self.work)", "def pad(self):\n    self.lens.fill_(-1)"),
            runner("self.x.index_put_((self.lens,), self.work)", "def pad(self):\n    self.lens.fill_(7)"),
        )
    ],
    "GC704": [
        (
            "import torch\nfrom graphcheck import capture_safe\n@capture_safe(dynamic=('x', 'm'), static=('n',))\n"
            "def f(x, m, n):\n    y = torch.empty(8, device='cuda')\n    y[:n].copy_(x)\n    return y\n",
            "import torch\nfrom graphcheck import capture_safe\n@capture_safe(dynamic=('x', 'm'), static=('n',))\n"
            "def f(x, m, n):\n    y = torch.zeros(8, device='cuda')\n    y[:n].copy_(x)\n    return y\n",
        )
    ],
    "GC705": [
        (
            runner(
                "self.out = self.x + self.lens.sum()",
                "def step(self, lens=None):\n    if lens is not None:\n        self.lens.copy_(lens)\n    self.graph.replay()",
            ),
            runner(
                "self.out = self.x + self.lens.sum()",
                "def step(self, lens=None):\n    if lens is not None:\n        self.lens.copy_(lens)\n    else:\n        self.lens.zero_()\n    self.graph.replay()",
            ),
        )
    ],
    "GC801": [
        (region("y = model.sample(x, seed=int(model.seed))", before="pass"), region("y = model.sample(x, seed=lens)")),
        (
            region("y = torch.bernoulli(x, generator=r)", before="r = torch.Generator('cuda')"),
            region(
                "y = torch.bernoulli(x, generator=r)",
                before="r = torch.Generator('cuda')\ng.register_generator_state(r)",
            ),
        ),
        (region("import random\ny = x * random.random()"), region("y = x * torch.rand_like(x)")),
    ],
    "GC802": [
        (region("torch.manual_seed(3)"), region("out.zero_()", before="torch.manual_seed(3)")),
        (
            region("import torch.utils.checkpoint\ny = torch.utils.checkpoint.checkpoint(model, x)"),
            region(
                "import torch.utils.checkpoint\ny = torch.utils.checkpoint.checkpoint(model, x, preserve_rng_state=False)"
            ),
        ),
    ],
    "GC903": [
        (
            "import torch\ng = torch.cuda.CUDAGraph()\ndef build(x):\n    with torch.cuda.graph(g):\n        y = x * 2\n    return x, y\n"
            "def stop():\n    torch.distributed.destroy_process_group()\n",
            "import torch\ng = torch.cuda.CUDAGraph()\ndef build(x):\n    with torch.cuda.graph(g):\n        y = x * 2\n    return x, y\n"
            "def stop():\n    g.reset()\n    torch.distributed.destroy_process_group()\n",
        )
    ],
    "GC905": [
        (
            region("w = torch.distributed.all_reduce(x, async_op=True)"),
            region("w = torch.distributed.all_reduce(x, async_op=True)\nw.wait()"),
        )
    ],
    "GC993": [
        (
            "from graphcheck import capture_safe\n@capture_safe(dynamic=('kv_len',))\ndef f(kv_lens):\n    pass\n",
            "from graphcheck import capture_safe\n@capture_safe(dynamic=('kv_lens',))\ndef f(kv_lens):\n    pass\n",
        )
    ],
}

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


CASES["GC603"] = [
    (
        component(
            "if self.total is None:\n    self.total = torch.zeros(4, device='cuda')\nbuffers.out.copy_(self.total)"
        ),
        component("total = torch.zeros(4, device='cuda')\nbuffers.out.copy_(total)"),
    )
]
