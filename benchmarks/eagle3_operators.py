"""What row invariance costs: the Triton operators against torch's own, replayed from CUDA graphs.

    python benchmarks/eagle3_operators.py [--json FILE] [--rows 1 4 8 16 32 64]

For each weight and number of rows: microseconds per call of `eagle3.ops.triton.linear` and of ``torch.nn.functional.linear``
(cuBLAS), the bandwidth at which the weight is read, and whether the rows of either keep their bits when they are computed
alone. Calls go through as many copies of the weight as the L2 cache cannot hold.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch

from eagle3.ops import Operators

# [N, K]: the small pair, Llama 3.1 8B's head, a stack of MiniMax-M3's width.
WEIGHTS = {
    "small gate and up": (1408, 256),
    "small down": (256, 704),
    "8B qkv": (6144, 8192),
    "8B LM head": (32000, 4096),
    "M3 square": (6144, 6144),
    "M3 qkv, one shard of four": (2304, 6144),
    "M3 key": (128, 6144),
    "M3 LM head": (200064, 6144),
}
CACHE = 256 << 20
CALLS = 50

Linear = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def microseconds(linear: Linear, x: torch.Tensor, weights: list[torch.Tensor]) -> float:
    """Median time of a call, out of one graph of `CALLS` calls that walks through the weights."""
    calls = [weights[number % len(weights)] for number in range(CALLS)]
    for weight in calls:
        linear(x, weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for weight in calls:
            linear(x, weight)
    times = []
    for _ in range(12):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / CALLS)
    return float(sorted(times)[len(times) // 2])


def rows_that_change(linear: Linear, x: torch.Tensor, weight: torch.Tensor) -> int:
    """Rows whose bits differ from those they have alone."""
    together = linear(x, weight)
    alone = torch.cat([linear(row.unsqueeze(0), weight) for row in x])
    return int((together.view(torch.int16) != alone.view(torch.int16)).any(1).sum())


def measure(rows: list[int]) -> list[dict[str, object]]:
    """One entry per weight and number of rows."""
    kinds = {name: Operators(name).linear for name in ("triton", "plain")}
    results: list[dict[str, object]] = []
    for name, (columns, depth) in WEIGHTS.items():
        size = columns * depth * 2
        copies = min(max(1, -(-CACHE // size)), CALLS)
        weights = [torch.randn(columns, depth, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
        for count in rows:
            x = torch.randn(count, depth, device="cuda", dtype=torch.bfloat16)
            entry: dict[str, object] = {"weight": name, "columns": columns, "depth": depth, "rows": count}
            for kind, linear in kinds.items():
                taken = microseconds(linear, x, weights)
                entry[f"{kind}_us"] = round(taken, 2)
                entry[f"{kind}_tb_s"] = round(size / taken / 1e6, 3)
                entry[f"{kind}_rows_changed"] = rows_that_change(linear, x, weights[0])
            results.append(entry)
            print(
                f"{name:26} {columns:>6} x {depth:<5} T {count:<3} triton {entry['triton_us']:>8} us "
                f"{entry['triton_tb_s']:>5} TB/s, {entry['triton_rows_changed']} rows change; "
                f"cuBLAS {entry['plain_us']:>8} us, {entry['plain_rows_changed']} rows change",
                flush=True,
            )
    return results


def main() -> None:
    """Print the table; store it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 16, 32, 64])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("the kernels are measured on a GPU, and torch sees none here")
    torch.manual_seed(0)
    results = measure(given.rows)
    if given.json:
        device = torch.cuda.get_device_name()
        given.json.write_text(json.dumps({"device": device, "torch": torch.__version__, "results": results}, indent=1))


if __name__ == "__main__":
    main()
