"""The row-invariant operators as Triton kernels, behind the interface of `eagle3.ops`; ``torch.ops.eagle3_triton.*``.

Importing this package imports triton; importing eagle3 does not. Block sizes follow from the weight's shape, never from
the number of rows, and nothing is tuned at run time. Written for Hopper (sm_90) and Triton 3.6; they also run in
Triton's interpreter. Run a step once before it is captured, so that every kernel is compiled and loaded.
"""

from eagle3.ops.triton.linear import linear
from eagle3.ops.triton.rms_norm import rms_norm
from eagle3.ops.triton.rope import rope
from eagle3.ops.triton.swiglu import swiglu

__all__ = ["linear", "rms_norm", "rope", "swiglu"]
