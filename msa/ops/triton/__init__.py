"""The passes of a decode step as Triton kernels, behind the interface of `msa.ops`; operators ``torch.ops.msa_triton.*``.

Importing this package imports triton; importing msa does not. The portable operators stay what these are checked
against. Written for Hopper (sm_90) and Triton 3.6; all but `sparse_teams`, which is in Gluon, also run in Triton's
interpreter.
"""

from msa.ops.triton.dense_attention import dense_attention
from msa.ops.triton.kv_write import kv_write, kv_write_layer
from msa.ops.triton.plan_ladder import correct_and_plan, plan_ladder
from msa.ops.triton.proxy_score import proxy_score
from msa.ops.triton.select_pages import select_pages
from msa.ops.triton.sparse_gqa import sparse_gqa

__all__ = [
    "correct_and_plan",
    "dense_attention",
    "kv_write",
    "kv_write_layer",
    "plan_ladder",
    "proxy_score",
    "select_pages",
    "sparse_gqa",
]
