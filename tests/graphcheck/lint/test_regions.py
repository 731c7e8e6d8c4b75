"""What counts as a captured region, and how far a hazard may stand from it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from graphcheck.finding import Finding
from graphcheck.lint import Settings, lint


def findings(path: Path, source: str) -> list[Finding]:
    """What lint says of a source."""
    path.write_text(textwrap.dedent(source))
    return lint([path], Settings()).findings


REGIONS = {
    "decorated": """
        from graphcheck import capture_safe
        @capture_safe(dynamic=("x",))
        def f(x):
            x.item()
    """,
    "component": """
        import torch, graphcheck
        class C(graphcheck.Component):
            def run(self, buffers):
                buffers.x.item()
    """,
    "graph context": """
        from torch.cuda import graph, CUDAGraph
        def f(x):
            g = CUDAGraph()
            with graph(g):
                x.item()
    """,
    "top level": """
        import torch
        g, x = torch.cuda.CUDAGraph(), torch.zeros(3, device="cuda")
        with torch.cuda.graph(g):
            x.item()
    """,
    "graphed callable": """
        import torch
        def f(x):
            return x.item()
        g = torch.cuda.make_graphed_callables(f, ())
    """,
    "graphed module": """
        import torch
        class M(torch.nn.Module):
            def forward(self, x):
                return x.item()
        def build(x):
            return torch.cuda.make_graphed_callables((M(),), ((x,),))
    """,
    "capture_begin": """
        import torch
        def f(x: torch.Tensor):
            g = torch.cuda.CUDAGraph()
            g.capture_begin()
            x.item()
            g.capture_end()
    """,
    "CuPy": """
        import cupy
        def f():
            x = cupy.zeros(4)
            stream = cupy.cuda.Stream(non_blocking=True)
            with stream:
                stream.begin_capture()
                x.item()
                graph = stream.end_capture()
    """,
    "cuda.core": """
        import torch
        from cuda.core import Device
        def f(x: torch.Tensor):
            builder = Device().create_graph_builder()
            builder.begin_building()
            try:
                x.item()
            finally:
                builder.end_building()
    """,
    "function handed to a capturing one": """
        import torch
        def capture(fn):
            g = torch.cuda.CUDAGraph()
            with torch.cuda.graph(g):
                fn()
            return g
        def build():
            x = torch.zeros(3, device="cuda")
            def step():
                x.item()
            return capture(step), x
    """,
}


@pytest.mark.parametrize("kind", REGIONS)
def test_a_read_inside_a_region_is_found(kind: str, tmp_path: Path) -> None:
    assert [found.code for found in findings(tmp_path / "a.py", REGIONS[kind])] == ["GC102"]


@pytest.mark.parametrize("kind", ["capture_begin", "CuPy", "cuda.core"])
def test_the_same_read_behind_the_region_is_not(kind: str, tmp_path: Path) -> None:
    """Expected: silence, because the region ended before."""
    lines = textwrap.dedent(REGIONS[kind]).splitlines()
    read = next(line for line in lines if "x.item()" in line)
    lines[lines.index(read)] = read.replace("x.item()", "pass")
    assert findings(tmp_path / "a.py", "\n".join([*lines, "    x.item()"])) == []


def test_a_hazard_two_calls_away_in_another_module_is_found_with_its_path(tmp_path: Path) -> None:
    """Expected: the finding stands at the hazard's own line and names every call from the region to it."""
    package = tmp_path / "engine"
    (package / "ops").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "ops" / "__init__.py").write_text("from .scan import longest\n")
    (package / "ops" / "scan.py").write_text(
        "def longest(lens):\n    return read(lens)\n\ndef read(t):\n    return t.max().item()\n"
    )
    (package / "run.py").write_text(
        "import torch\nfrom engine import ops\n\nclass Runner:\n    def __init__(self):\n"
        "        self.lens = torch.zeros(4, device='cuda')\n\n    def capture(self, g):\n        with torch.cuda.graph(g):\n"
        "            ops.longest(self.lens)\n"
    )
    for target in (package, package / "run.py"):
        (found,) = lint([target], Settings()).findings
        assert found.code == "GC102"
        assert found.where is not None and (Path(found.where.file).name, found.where.line) == ("scan.py", 5)
        assert found.place == "Runner.capture (run.py:10) -> longest (scan.py:2) -> read"


def test_code_that_a_guard_keeps_out_of_the_capture_is_no_region(tmp_path: Path) -> None:
    source = """
        import torch
        from graphcheck import capture_safe
        @capture_safe(dynamic=("x",), out=("out",))
        def f(x, out):
            if not torch.cuda.is_current_stream_capturing():
                torch.cuda.synchronize()
                print(x.max().item())
            out.copy_(x)
    """
    assert findings(tmp_path / "a.py", source) == []


def test_state_that_refuses_to_be_built_while_capturing_is_no_lazy_state(tmp_path: Path) -> None:
    """Expected: the guarded build is silent, the same build without the guard is not."""
    source = """
        import torch
        from graphcheck import capture_safe, refuse_while_capturing
        class Engine:
            @capture_safe(dynamic=("x",), static=("self",))
            def step(self, x):
                if self.work is None:
                    refuse_while_capturing("work")
                    self.work = torch.empty(4, device="cuda")
                self.work.copy_(x)
    """
    assert findings(tmp_path / "a.py", source) == []
    bare = source.replace('refuse_while_capturing("work")', "pass")
    assert [found.code for found in findings(tmp_path / "b.py", bare)] == ["GC405"]


def test_a_host_value_in_the_graph_key_may_be_frozen(tmp_path: Path) -> None:
    """Expected: a branch on a staged flag is a finding only as long as the key does not hold the flag."""
    source = """
        import torch
        from graphcheck import Component, Buffers
        class C(Component):
            def stage(self, buffers, case):
                self.flag = case.flag
            def run(self, buffers):
                if self.flag:
                    buffers.out.neg_()
                return {"out": buffers.out}
    """
    assert [found.code for found in findings(tmp_path / "a.py", source)] == ["GC303"]
    keyed = textwrap.dedent(source) + "    def key(self, case):\n        return case.flag\n"
    assert findings(tmp_path / "b.py", keyed) == []


def test_recursion_and_huge_regions_end(tmp_path: Path) -> None:
    """Expected: recursion is cut, and a region over the budget is reported as not read to its end."""
    recursive = "import torch\ndef f(x):\n    return f(x)\ndef b(g, x):\n    with torch.cuda.graph(g):\n        f(x)\n"
    assert findings(tmp_path / "a.py", recursive) == []
    body = "\n".join(f"        y = x + {n} * 2 - (3 + x)" for n in range(20_000))
    huge = f"import torch\ndef b(g, x):\n    with torch.cuda.graph(g):\n{body}\n"
    (found,) = findings(tmp_path / "b.py", huge)
    assert (found.code, found.severity.value) == ("GC990", "warning")


def test_calls_that_are_too_deep_are_reported_once(tmp_path: Path) -> None:
    """Expected: one warning for the region, however many calls lie too deep; none for a region that is read whole."""
    chain = (
        "".join(f"def f{n}(x):\n    f{n + 1}(x)\n    f{n + 1}(x)\n" for n in range(14)) + "def f14(x):\n    x.item()\n"
    )
    captured = "def b(g, x):\n    with torch.cuda.graph(g):\n        f{}(x)\n"
    (found,) = findings(tmp_path / "a.py", f"import torch\n{chain}{captured.format(0)}")
    assert (found.code, found.severity.value) == ("GC990", "warning")
    assert [found.code for found in findings(tmp_path / "b.py", f"import torch\n{chain}{captured.format(8)}")] == [
        "GC102"
    ]


def test_a_region_inside_a_nested_function_is_found(tmp_path: Path) -> None:
    source = """
        import torch
        def outer(x: torch.Tensor):
            def inner(g, y: torch.Tensor):
                with torch.cuda.graph(g):
                    y.item()
            return inner
    """
    assert [found.code for found in findings(tmp_path / "a.py", source)] == ["GC102"]


def test_a_counter_of_the_region_freezes_the_branch_on_it(tmp_path: Path) -> None:
    """Expected: the counter is a side effect, and the branch that asks it is frozen."""
    source = """
        import torch
        class Engine:
            def __init__(self):
                self.steps = 0
                self.kv = torch.zeros(4, device="cuda")
            def region(self):
                self.steps += 1
                if self.steps % 2 == 0:
                    return self.kv + 1
                return self.kv
            def capture(self, g):
                with torch.cuda.graph(g):
                    self.out = self.region()
    """
    assert [found.code for found in findings(tmp_path / "a.py", source)] == ["GC308", "GC303"]
