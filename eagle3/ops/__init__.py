"""Row-invariant operators: the bits of a row of the result depend on nothing but that row of the input.

Neither the number of rows, nor the place of a row among them, nor what stands in the others changes a bit, so that a
token's logits are the same whether it is decoded alone, verified among drafts or batched with other requests.
The bodies here are plain torch, entered as operators ``torch.ops.eagle3.*``; Triton kernels with the same interface are
in `eagle3.ops.triton`, plain functions without the promise in `eagle3.ops.plain`.
"""

from eagle3.ops.linear import linear
from eagle3.ops.operators import KERNELS, Operators
from eagle3.ops.rms_norm import rms_norm
from eagle3.ops.rope import rope, rope_table
from eagle3.ops.swiglu import swiglu

__all__ = ["KERNELS", "Operators", "linear", "rms_norm", "rope", "rope_table", "swiglu"]
