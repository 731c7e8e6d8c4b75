"""Names of torch, CuPy and Triton that matter to a capture, by what they do."""

from __future__ import annotations

SYNCHRONISING = frozenset(
    {
        "torch.cuda.synchronize",
        "torch.accelerator.synchronize",
        "torch.distributed.barrier",
        "torch.distributed.monitored_barrier",
        "cupy.cuda.runtime.deviceSynchronize",
        "cupy.cuda.runtime.streamSynchronize",
        "cupy.cuda.get_current_stream.synchronize",
    }
)

HOST_READS = frozenset({"item", "tolist", "cpu", "numpy", "get"})
HOST_BUILTINS = frozenset({"int", "float", "bool", "complex", "str", "repr", "format"})

CREATES_FROM_DATA = frozenset({"torch.tensor", "torch.as_tensor", "torch.asarray", "torch.from_numpy", "cupy.asarray"})
FACTORIES = frozenset(
    f"torch.{name}"
    for name in [
        "empty",
        "zeros",
        "ones",
        "full",
        "arange",
        "linspace",
        "rand",
        "randn",
        "randint",
        "randperm",
        "eye",
        "tril_indices",
        "triu_indices",
        "empty_strided",
        "logspace",
        "empty_permuted",
    ]
) | frozenset(f"cupy.{name}" for name in ["empty", "zeros", "ones", "full", "arange"])
LIKE = frozenset(
    f"torch.{name}"
    for name in ["empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like"]
)
NEW = frozenset({"new_empty", "new_zeros", "new_ones", "new_full", "new_tensor"})
UNWRITTEN = frozenset({"empty", "empty_like", "new_empty", "empty_strided", "empty_permuted"})
INITIALISED = frozenset(
    [
        "zeros",
        "ones",
        "full",
        "arange",
        "linspace",
        "eye",
        "rand",
        "randn",
        "randint",
        "randperm",
        "zeros_like",
        "ones_like",
        "full_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "tril_indices",
        "triu_indices",
        "logspace",
    ]
)

# Give host values although their argument is a tensor: shape and type are known while capturing.
HOST_FACTS = frozenset(
    [
        "shape",
        "ndim",
        "dtype",
        "device",
        "layout",
        "is_cuda",
        "requires_grad",
        "grad_fn",
        "itemsize",
        "nbytes",
        "is_sparse",
        "names",
        "is_leaf",
    ]
)
HOST_METHODS = frozenset(
    [
        "size",
        "dim",
        "numel",
        "stride",
        "data_ptr",
        "element_size",
        "is_contiguous",
        "get_device",
        "is_floating_point",
        "is_complex",
        "storage_offset",
        "type",
        "nelement",
        "untyped_storage",
        "storage",
        "ndimension",
        "is_shared",
        "is_pinned",
        "record_stream",
        "has_names",
        "retain_grad",
        "requires_grad_",
        "register_hook",
        "is_inference",
    ]
)
HOST_FUNCTIONS = frozenset(
    f"torch.{name}"
    for name in [
        "is_tensor",
        "numel",
        "is_floating_point",
        "is_complex",
        "result_type",
        "promote_types",
        "finfo",
        "iinfo",
        "broadcast_shapes",
        "device",
        "dtype",
        "Size",
        "get_device",
        "can_cast",
        "is_grad_enabled",
        "get_default_dtype",
        "is_inference_mode_enabled",
    ]
)

VIEWS = frozenset(
    [
        "view",
        "view_as",
        "narrow",
        "select",
        "expand",
        "expand_as",
        "unsqueeze",
        "squeeze",
        "permute",
        "transpose",
        "swapaxes",
        "t",
        "mT",
        "T",
        "H",
        "movedim",
        "diagonal",
        "detach",
        "unflatten",
        "as_strided",
        "real",
        "imag",
        "unbind",
        "chunk",
        "split",
        "tensor_split",
        "hsplit",
        "vsplit",
        "dsplit",
        "data",
    ]
)
PARTIAL = frozenset({"narrow", "select", "unbind", "chunk", "split", "tensor_split", "diagonal", "as_strided"})
SEVERAL = frozenset({"unbind", "chunk", "split", "tensor_split", "hsplit", "vsplit", "dsplit"})

# Methods that only tensors have, for receivers whose origin is out of sight.
TENSOR_METHODS = frozenset(
    [
        "narrow",
        "unsqueeze",
        "index_select",
        "index_copy_",
        "index_add_",
        "index_put_",
        "masked_fill",
        "masked_fill_",
        "scatter_",
        "scatter_add_",
        "gather",
        "cumsum",
        "amax",
        "amin",
        "argmax",
        "argmin",
        "softmax",
        "log_softmax",
        "matmul",
        "bmm",
        "permute",
        "zero_",
        "copy_",
        "fill_",
        "add_",
        "sub_",
        "mul_",
        "div_",
        "clamp_",
        "clamp",
        "index_fill_",
        "new_empty",
        "new_zeros",
        "new_full",
        "new_tensor",
        "new_ones",
        "repeat_interleave",
        "masked_select",
        "nonzero",
        "unbind",
        "expand_as",
        "view_as",
        "contiguous",
        "type_as",
        "isnan",
        "isinf",
    ]
)

DATA_DEPENDENT = frozenset(
    [
        "nonzero",
        "masked_select",
        "unique",
        "unique_consecutive",
        "bincount",
        "argwhere",
        "combinations",
        "count_nonzero_rows",
    ]
)
COMPARES = frozenset(
    [
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "isnan",
        "isinf",
        "isfinite",
        "logical_and",
        "logical_or",
        "logical_not",
        "logical_xor",
        "isin",
    ]
)
READS_INSIDE = frozenset({"equal", "allclose", "is_nonzero", "is_same_size_and_value"})

# In place, and the new content follows from the old one: a second run does not give the same bits.
ACCUMULATES = frozenset(
    [
        "add_",
        "sub_",
        "mul_",
        "div_",
        "index_add_",
        "scatter_add_",
        "addmm_",
        "baddbmm_",
        "addcmul_",
        "addcdiv_",
        "cumsum_",
        "lerp_",
        "pow_",
        "neg_",
        "exp_",
        "bitwise_xor_",
        "logical_not_",
        "remainder_",
        "floor_divide_",
        "index_reduce_",
        "scatter_reduce_",
        "subtract_",
        "multiply_",
        "divide_",
        "sqrt_",
        "rsub_",
    ]
)
WHOLE_WRITES = frozenset({"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_"})
MOVES = frozenset({"set_", "resize_", "resize_as_", "swap_tensors"})

# Arguments that say how much: a number here is an extent, anywhere else a scalar.
EXTENT_FUNCTIONS = frozenset(
    [
        "narrow",
        "expand",
        "view",
        "reshape",
        "repeat",
        "arange",
        "zeros",
        "ones",
        "empty",
        "full",
        "new_empty",
        "new_zeros",
        "new_full",
        "new_ones",
        "split",
        "chunk",
        "as_strided",
        "tile",
        "unflatten",
        "topk",
        "select",
        "linspace",
        "pad",
        "range",
        "rand",
        "randn",
    ]
)
EXTENT_WORDS = (
    "len",
    "size",
    "width",
    "height",
    "rows",
    "cols",
    "count",
    "grid",
    "stride",
    "pages",
    "splits",
    "tokens",
)
HEURISTIC_WORDS = ("split", "heuristic", "tactic", "schedule", "autotune", "num_stages", "variant")

SEED_WORDS = ("seed", "philox", "rng_offset")
RANDOM_STATE = frozenset(
    {
        "torch.manual_seed",
        "torch.seed",
        "torch.initial_seed",
        "torch.get_rng_state",
        "torch.set_rng_state",
        "torch.cuda.manual_seed",
        "torch.cuda.manual_seed_all",
        "torch.cuda.seed",
        "torch.cuda.seed_all",
        "torch.cuda.initial_seed",
        "torch.cuda.get_rng_state",
        "torch.cuda.set_rng_state",
        "torch.cuda.get_rng_state_all",
        "torch.cuda.set_rng_state_all",
        "torch.random.fork_rng",
        "torch.random.manual_seed",
        "torch.random.get_rng_state",
        "torch.random.set_rng_state",
    }
)
COMPILING = frozenset(
    {
        "torch.compile",
        "torch.jit.script",
        "torch.jit.trace",
        "torch.jit.load",
        "torch.export.export",
        "torch.utils.cpp_extension.load",
        "torch.utils.cpp_extension.load_inline",
        "torch.ops.load_library",
        "triton.compile",
        "triton.autotune",
        "cupy.RawModule",
    }
)
CAPTURING = ("is_current_stream_capturing", "is_capturing", "is_stream_capturing", "in_cuda_graph_capture")

CURRENT_STREAM = frozenset(
    {"torch.cuda.current_stream", "cupy.cuda.get_current_stream", "torch.accelerator.current_stream"}
)
DEFAULT_STREAM = frozenset({"torch.cuda.default_stream"})
STREAM_CONTEXTS = frozenset({"torch.cuda.stream", "torch.cuda.StreamContext", "torch.Stream", "cupy.cuda.Stream"})
GRAPH_CONTEXTS = frozenset({"torch.cuda.graph", "torch.cuda.graphs.graph", "torch.xpu.graph"})
STREAMS = frozenset({"torch.cuda.Stream", "torch.cuda.ExternalStream", "cupy.cuda.Stream", "cupy.cuda.ExternalStream"})
EVENTS = frozenset({"torch.cuda.Event", "torch.Event", "cupy.cuda.Event"})
GRAPHS = frozenset({"torch.cuda.CUDAGraph", "torch.cuda.graphs.CUDAGraph"})
BEGINS = frozenset({"begin_capture", "capture_begin", "begin_building"})
ENDS = frozenset({"end_capture", "capture_end", "end_building"})

OPTIMISERS = frozenset(
    ["SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "ASGD", "Adadelta", "Adagrad", "RMSprop", "Rprop"]
)
SUPPORTS_CAPTURABLE = frozenset(["Adam", "AdamW", "NAdam", "RAdam", "Adamax", "ASGD", "Adadelta", "RMSprop", "Rprop"])


def is_in_place(method: str) -> bool:
    """Whether torch's naming says that a method writes its receiver."""
    return method.endswith("_") and not method.endswith("__") and len(method) > 1 and method not in HOST_METHODS
