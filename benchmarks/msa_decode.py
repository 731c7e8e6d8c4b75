"""Times the passes of the decode driver on one GPU, beside what public kernels do on an H200.

::

    PYTHONPATH=. python3 benchmarks/msa_decode.py --json FILE        # about four minutes
    PYTHONPATH=. python3 benchmarks/msa_decode.py --quick

Every figure is the median of 20 replays of a captured graph, in microseconds per call. Warm: the graph holds 20 calls.
Cold: it holds ten, each behind a kernel that writes more than twice the L2, and what those kernels take by themselves is
subtracted. Bytes are the least that a stage must move, with whole pages; the share is that of the read limit, which a
plain read kernel shows in the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import triton
import triton.language as tl

from msa import DecodeDriver, Geometry, PagedCache
from msa.geometry import FP8

PEERS = Path(__file__).with_name("msa_peers.json")
REPLAYS = 20
WARM_CALLS, COLD_CALLS = 20, 10
SCRUBBED = 160 << 20
READ = 2 << 30
# Replays of one graph take this long at most, in microseconds; longer calls are repeated less often in it.
LONGEST_GRAPH = 40_000.0
SHARDS = {"16/1": 4, "64/4": 1}
# Pages that are filled at one time.
FILLED = 1024


@dataclass(frozen=True)
class Line:
    """One point of the grid.

    Args:
        heads: "Hq/Hkv".
        batch: B.
        context: tokens of each request, the query tokens included.
        qo_len: Q.
        stored: of caches, "bf16" or "fp8".
    """

    heads: str
    batch: int
    context: int
    qo_len: int
    stored: str = "bf16"

    def geometry(self) -> Geometry:
        """The sizes of MiniMax-M3 for this line."""
        pages = -(-self.context // 128)
        kept = FP8 if self.stored == "fp8" else None
        return Geometry.m3(
            SHARDS[self.heads],
            max_batch=self.batch,
            max_pages=pages,
            num_pages=self.batch * pages,
            kv_dtype=kept,
            index_dtype=kept,
        )


def grid(quick: bool, stored: str) -> Iterator[Line]:
    """The lines to measure, those that share compiled kernels one after the other."""
    for kept in ("bf16", "fp8") if stored == "both" else (stored,):
        for heads in ("16/1",) if quick else SHARDS:
            for qo_len in (1, 4):
                for context in (8192,) if quick else (8192, 131072):
                    for batch in (1, 8) if quick else (1, 8, 64):
                        # Bytes count where there are many of them.
                        if kept == "bf16" or batch == 64 or stored == "fp8":
                            yield Line(heads, batch, context, qo_len, kept)


class Clock(Protocol):
    """Takes the time of one call of ``call``, microseconds."""

    def warm(self, call: Callable[[], object]) -> float:
        """With everything in the caches that fits there."""

    def cold(self, call: Callable[[], object]) -> float:
        """With nothing of it in the caches."""


class GraphClock:
    """Replays of captured graphs between CUDA events."""

    def __init__(self) -> None:
        self.scrubbed = torch.empty(SCRUBBED // 4, device="cuda")
        self._once(self._scrub)
        self.scrub_only = self._replays(self._graph(self._scrub, COLD_CALLS))

    def warm(self, call: Callable[[], object]) -> float:
        calls = max(1, min(WARM_CALLS, int(LONGEST_GRAPH / self._once(call))))
        return self._replays(self._graph(call, calls)) / calls

    def cold(self, call: Callable[[], object]) -> float:
        def scrubbed() -> None:
            self._scrub()
            call()

        self._once(call)
        both = self._replays(self._graph(scrubbed, COLD_CALLS))
        return max(both - self.scrub_only, 0.0) / COLD_CALLS

    def _scrub(self) -> None:
        self.scrubbed.fill_(1.0)

    def _once(self, call: Callable[[], object]) -> float:
        """Microseconds of an eager call, behind one that may compile."""
        call()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return max(float(start.elapsed_time(end)) * 1e3, 1.0)

    def _graph(self, call: Callable[[], object], calls: int) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                call()
        return graph

    def _replays(self, graph: torch.cuda.CUDAGraph) -> float:
        """Median of the replays, microseconds."""
        for _ in range(3):
            graph.replay()
        marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(REPLAYS)]
        for start, end in marks:
            start.record()
            graph.replay()
            end.record()
        torch.cuda.synchronize()
        return statistics.median(start.elapsed_time(end) for start, end in marks) * 1e3


class WallClock:
    """One call by the wall clock, where there is no GPU: to try the logic, not to measure."""

    def warm(self, call: Callable[[], object]) -> float:
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e6

    cold = warm


@triton.jit
def _read(source, sums, count, BLOCK: tl.constexpr):  # noqa: N803
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    total = tl.zeros([BLOCK], tl.float32)
    for first in tl.range(tl.program_id(0).to(tl.int64) * BLOCK, count, step):
        total += tl.load(source + first + tl.arange(0, BLOCK))
    tl.store(sums + tl.program_id(0), tl.sum(total))


def read_limit(clock: Clock, device: str, nbytes: int = READ, blocks: tuple[int, ...] = (4096, 8192, 16384)) -> float:
    """The fastest plain read of ``nbytes`` over a few shapes of the kernel, GB/s."""
    count = nbytes // 4 // blocks[-1] * blocks[-1]
    source = torch.ones(count, device=device)
    units = torch.cuda.get_device_properties(device).multi_processor_count if device == "cuda" else 1
    sums = torch.zeros(units * 8, device=device)
    fastest = 0.0
    for block in blocks:
        for each in (2, 4, 8):
            call = lambda block=block, each=each: _read[(units * each,)](source, sums, count, BLOCK=block, num_warps=8)  # noqa: E731
            fastest = max(fastest, count * 4 / clock.warm(call) / 1e3)
    return fastest


def selections(geometry: Geometry, line: Line) -> dict[str, torch.Tensor]:
    """Page lists int32 [T, Hkv, K], host: each row with its own page and others drawn at random.

    "random": every row by itself; "same": the rows of a request alike; "partial": three quarters of a list alike.
    """
    draw = torch.Generator().manual_seed(0)
    pages, top_k = geometry.pages(line.context), geometry.top_k
    shape = (line.batch, line.qo_len, geometry.kv_heads, pages - 1)
    own = torch.rand(shape, generator=draw)
    alike = torch.rand(shape[0], 1, *shape[2:], generator=draw).expand(shape)
    some = alike.clone()
    # Ranks below three quarters of a list are common, what fills the rest is each row's own.
    rank = alike.argsort(-1).argsort(-1)
    some = torch.where(rank < (top_k * 3) // 4, alike - 2.0, own)
    found = {}
    for name, keys in (("random", own), ("same", alike), ("partial", some)):
        taken = min(top_k - 1, pages - 1)
        ids = torch.full((*shape[:3], top_k), -1, dtype=torch.int32)
        ids[..., :taken] = keys.argsort(-1)[..., :taken].sort(-1).values.to(torch.int32)
        ids[..., taken] = pages - 1
        found[name] = ids.flatten(0, 1)
    return found if line.qo_len > 1 else {"random": found["random"]}


def least_bytes(geometry: Geometry, line: Line, ids: torch.Tensor) -> dict[str, int]:
    """Bytes that each stage must move at least: inputs read once, results written once; whole pages.

    Args:
        ids: [T, Hkv, K] int32, host: what the sparse stage attends to.
    """
    rows, dim, size = line.batch * line.qo_len, geometry.head_dim, geometry.dtype.itemsize
    page = geometry.page_size * dim
    scores = rows * geometry.index_heads * geometry.pages(line.context) * 4
    keys = line.batch * geometry.pages(line.context) * page
    listed = rows * geometry.kv_heads * geometry.top_k * 4
    queries = rows * geometry.q_heads * dim * size
    by_request = ids.view(line.batch, line.qo_len, geometry.kv_heads, -1).transpose(1, 2).flatten(2)
    union = sum(len({page for page in row if page >= 0}) for row in by_request.flatten(0, 1).tolist())
    score = keys * geometry.stored_index.itemsize + rows * geometry.index_heads * dim * size + scores
    sparse = 2 * union * page * geometry.stored_kv.itemsize + 2 * queries + listed
    return {
        "score": score,
        "select": scores + listed,
        "index": score + listed,
        "sparse": sparse,
        "pair": score + listed + sparse,
        "dense": 2 * keys * geometry.kv_heads * geometry.stored_kv.itemsize + 2 * queries,
    }


class Subject:
    """A driver, a cache and inputs of one line, with everything compiled.

    Args:
        line: what is measured.
        geometry: sizes.
        device: "cuda", or "cpu" in Triton's interpreter.
        pdl: programmatic dependent launches.
    """

    def __init__(self, line: Line, geometry: Geometry, device: str, pdl: bool = False) -> None:
        self.line, self.geometry = line, geometry
        draw = torch.Generator(device).manual_seed(0)
        rows = line.batch * line.qo_len

        def new(heads: int) -> torch.Tensor:
            shape = (rows, heads, geometry.head_dim)
            return torch.randn(shape, generator=draw, device=device).to(geometry.dtype)

        self.q, self.k, self.v = new(geometry.q_heads), new(geometry.kv_heads), new(geometry.kv_heads)
        self.index_q, self.index_k = new(geometry.index_heads), new(1)
        self.cache = PagedCache.allocate(geometry, device)
        for tensor in (self.cache.k, self.cache.v, self.cache.index_k):
            assert tensor is not None
            for part in tensor.split(FILLED):
                part.copy_(torch.randn(part.shape, generator=draw, device=device))
        self.driver = DecodeDriver(geometry, line.batch, line.qo_len, device, kernels="triton", pdl=pdl)
        pages = torch.randperm(geometry.num_pages, generator=torch.Generator().manual_seed(0))
        table = pages[: line.batch * geometry.pages(line.context)].view(line.batch, -1)
        self.driver.stage([line.context] * line.batch, table.tolist())
        self.driver.prepare(self.q, self.k, self.v, self.index_q, self.index_k, self.cache)
        self.dense_out = torch.empty_like(self.driver.out)
        self.stages()["layer"]()
        self.eager = [tensor.clone() for tensor in (self.driver.page_ids, self.driver.out)]

    def stages(self) -> dict[str, Callable[[], object]]:
        """The stages by name. "pair" is index and sparse; "layer" a sparse layer's step with planning and writes."""
        driver, cache = self.driver, self.cache

        def index() -> None:
            driver.score(self.index_q, cache)
            driver.select()

        def pair() -> None:
            index()
            driver.attend_sparse(self.q, cache)

        def layer() -> None:
            driver.plan()
            driver.sparse_layer(self.q, self.k, self.v, self.index_q, self.index_k, cache)

        return {
            "plan": driver.plan,
            "write": lambda: driver.write(cache, self.k, self.v, self.index_k),
            "score": lambda: driver.score(self.index_q, cache),
            "select": driver.select,
            "index": index,
            "sparse": lambda: driver.attend_sparse(self.q, cache),
            "pair": pair,
            "layer": layer,
            "dense": lambda: driver.attend_dense(self.q, cache, self.dense_out),
        }

    def as_eager(self) -> bool:
        """Whether pages and output of the step that ran last, a replay, are those of the first, which was eager."""
        now = (self.driver.page_ids, self.driver.out)
        return all(torch.equal(*both) for both in zip(self.eager, now, strict=True))


def measure(
    line: Line, geometry: Geometry, clock: Clock, limit: float, device: str, pdl: bool = False
) -> list[dict[str, Any]]:
    """One record each for the warm and the cold cache.

    Args:
        limit: what the read kernel reaches, GB/s.
    """
    subject = Subject(line, geometry, device, pdl)
    stages, lists = subject.stages(), selections(geometry, line)
    needed = {name: least_bytes(geometry, line, ids) for name, ids in lists.items()}
    records, same = [], True
    for cache in ("warm", "cold"):
        take = clock.warm if cache == "warm" else clock.cold
        found: dict[str, dict[str, float | int]] = {}

        def note(name: str, us: float, nbytes: int = 0, found: dict[str, Any] = found) -> None:
            found[name] = {"us": round(us, 3)}
            if nbytes:
                found[name] |= {"bytes": nbytes, "share": round(nbytes / max(us, 1e-3) / 1e3 / limit, 4)}

        for name, call in stages.items():
            if name == "sparse":
                for kind, ids in lists.items():
                    subject.driver.page_ids.copy_(ids)
                    note("sparse" if kind == "random" else f"sparse_{kind}", take(call), needed[kind]["sparse"])
            elif cache == "warm" or name not in ("plan", "write", "dense"):
                note(name, take(call), needed["random"].get(name, 0))
            if name == "layer":
                same = same and subject.as_eager()
        found["sum"] = {"us": round(found["index"]["us"] + found["sparse"]["us"], 3)}
        records.append({**asdict(line), "cache": cache, "pdl": pdl, "stages": found})
    return [{**record, "as_eager": same} for record in records]


def beside(record: Mapping[str, Any], peers: Mapping[str, Any]) -> dict[str, Any]:
    """The record with the peers' figures for its line, the best of each stage, and how many times as fast ours is.

    Peers are those of bf16: an fp8 line stands beside them too.
    """
    same = ("heads", "batch", "context", "qo_len", "cache")
    known = next((each for each in peers["lines"] if all(each[name] == record[name] for name in same)), {})
    makers = {maker: known[maker] for maker in ("vllm", "sglang") if maker in known}
    best: dict[str, float] = {}
    for stages in makers.values():
        for name, us in stages.items():
            best[name] = min(us, best.get(name, us))
    if "index" in best and "sparse" in best:
        best["sum"] = round(best["index"] + best["sparse"], 3)
    ours = record["stages"]
    speed = {name: round(us / max(ours[name]["us"], 1e-3), 3) for name, us in best.items() if name in ours}
    return {**record, "peers": makers, "best_peer": best, "times_as_fast": speed}


COLUMNS = ("score", "select", "index", "sparse", "sparse_same", "sum", "pair", "layer", "dense")


def table(records: list[dict[str, Any]]) -> str:
    """The records as text: microseconds, and behind them the share of the read limit and the speed against the best peer."""
    head = ["heads", "B", "context", "Q", "kept", "cache", *COLUMNS]
    rows = [head]
    for record in records:
        row = [str(record[name]) for name in ("heads", "batch", "context", "qo_len", "stored", "cache")]
        for name in COLUMNS:
            stage = record["stages"].get(name)
            words = "" if stage is None else f"{stage['us']:.2f}"
            if stage is not None and "share" in stage:
                words += f" {stage['share']:.0%}"
            if name in record.get("times_as_fast", {}):
                words += f" x{record['times_as_fast'][name]:.2f}"
            row.append(words)
        rows.append(row)
    widths = [max(len(row[place]) for row in rows) for place in range(len(head))]
    return "\n".join("  ".join(word.rjust(width) for word, width in zip(row, widths, strict=True)) for row in rows)


def main(arguments: list[str] | None = None) -> int:
    """Measure the grid, print the table and write the JSON; 3 where there is no GPU."""
    parser = argparse.ArgumentParser(description="Times the passes of msa's decode driver on one GPU.")
    parser.add_argument("--json", type=Path, help="write everything there")
    parser.add_argument("--quick", action="store_true", help="heads 16/1, 8K, one and eight requests, bf16")
    parser.add_argument(
        "--stored", choices=("bf16", "fp8", "both"), help="of the caches; fp8 at 64 requests by default"
    )
    parser.add_argument("--pdl", action="store_true", help="programmatic dependent launches")
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("msa_decode times a GPU, and there is none", file=sys.stderr)
        return 3
    clock = GraphClock()
    limit = read_limit(clock, "cuda")
    peers = json.loads(PEERS.read_text(encoding="utf-8"))
    records: list[dict[str, Any]] = []
    for line in grid(given.quick, given.stored or ("bf16" if given.quick else "both")):
        torch.cuda.empty_cache()
        records += [beside(each, peers) for each in measure(line, line.geometry(), clock, limit, "cuda", given.pdl)]
        print(f"measured {line}", file=sys.stderr, flush=True)
        if given.json:
            # What is measured stays, should the next line fail.
            given.json.write_text(json.dumps(report(records, limit, peers), indent=1) + "\n", encoding="utf-8")
    print(f"read limit {limit:.0f} GB/s; microseconds, share of the limit, times as fast as the best peer")
    print(table(records))
    return 0 if all(record["as_eager"] for record in records) else 1


def report(records: list[dict[str, Any]], limit: float, peers: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that was measured, with where."""
    return {
        "schema": "msa-decode/1",
        "command": ["benchmarks/msa_decode.py", *sys.argv[1:]],
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "torch": torch.__version__,
        "triton": triton.__version__,
        "replays": REPLAYS,
        "read_limit_gbs": round(limit, 1),
        "peers": {name: peers[name] for name in ("source", "machine", "method")},
        "lines": records,
    }


if __name__ == "__main__":
    sys.exit(main())
