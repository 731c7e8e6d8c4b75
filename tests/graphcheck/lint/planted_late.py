"""Smallest wrong and right sources, by code: lifetimes, warm-up, padding, random numbers, ranks."""

from __future__ import annotations

import runpy
from pathlib import Path

SOURCES = runpy.run_path(str(Path(__file__).with_name("sources.py")))
region, runner, component = SOURCES["region"], SOURCES["runner"], SOURCES["component"]

CASES: dict[str, list[tuple[str, str]]] = {
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

CASES["GC603"] = [
    (
        component(
            "if self.total is None:\n    self.total = torch.zeros(4, device='cuda')\nbuffers.out.copy_(self.total)"
        ),
        component("total = torch.zeros(4, device='cuda')\nbuffers.out.copy_(total)"),
    )
]
