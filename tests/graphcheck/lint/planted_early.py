"""Smallest wrong and right sources, by code: calls, streams and frozen values."""

from __future__ import annotations

import runpy
from pathlib import Path

SOURCES = runpy.run_path(str(Path(__file__).with_name("sources.py")))
region, runner, component = SOURCES["region"], SOURCES["runner"], SOURCES["component"]

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
        ),
        (
            region(
                "y = model * 2\nif lora:\n    y = y + model",
                before="lora = False",
                after="for flag in model:\n    lora = flag\n    g.replay()",
            ),
            region("y = model * 2\nif lora:\n    y = y + model", before="lora = False"),
        ),
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
}
