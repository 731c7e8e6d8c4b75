"""The passes of a decode step as torch operators ``torch.ops.msa.*``.

Every operator takes its output as an argument, writes it in place and returns nothing. The bodies are plain torch: they
read lengths, tables and ids on the device only, and loop over shapes.
"""

from msa.ops.dense import dense_attention
from msa.ops.kv_write import kv_write
from msa.ops.proxy_score import proxy_score
from msa.ops.select_pages import select_pages
from msa.ops.sparse_gqa import sparse_gqa

__all__ = ["dense_attention", "kv_write", "proxy_score", "select_pages", "sparse_gqa"]
