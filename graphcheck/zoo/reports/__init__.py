"""Public reports of CUDA graphs going wrong, each as a planted component with a clean twin."""

from __future__ import annotations

from graphcheck.zoo.reports import addresses, effects, lengths, padding, plans, staging, streams, warmup
from graphcheck.zoo.reports.static import STATIC

MODULES = (lengths, plans, addresses, staging, warmup, padding, effects, streams)
ZOO = [entry for module in MODULES for entry in module.ZOO]
# By number: the cause, and why no component on one emulated device shows it.
ELSEWHERE = {
    "B023": ("GC411", "the BLAS workspace of a stream belongs to the real library"),
    "B065": ("GC204", "tensors and the current device must differ, which takes two GPUs"),
    "B083": ("GC904", "first use of a communicator enables access between several GPUs"),
    "B089": ("GC901", "buffers are registered between the ranks of several GPUs"),
    "B091": ("GC902", "ranks record different numbers of collectives, which takes several ranks"),
    "B093": ("GC903", "a process group that captured collectives is torn down, which takes several ranks"),
    "B095": ("GC902", "ranks choose different graph variants, which takes several ranks"),
    "B101": ("GC951", "the kernels of one compute capability give other bits in a graph"),
}
__all__ = ["ELSEWHERE", "STATIC", "ZOO"]
