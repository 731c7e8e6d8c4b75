"""Which code an error of a capturing stream deserves: by the torch function, the operator and the frames it came through."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from graphcheck.backend.cuda.foreign import DEVICE, POOLED, Request
from graphcheck.backend.cuda.oplog import Log
from graphcheck.errors import CaptureRefused
from graphcheck.finding import exception_location

_BY_FRAME = {
    ("torch/cuda/__init__.py", "synchronize"): "GC101",
    ("torch/cuda/streams.py", "synchronize"): "GC101",
    ("torch/cuda/streams.py", "query"): "GC108",
    ("triton/runtime/autotuner.py", "_bench"): "GC601",
}
_BY_FUNCTION = {
    "__bool__": "GC104",
    "equal": "GC104",
    "allclose": "GC104",
    "is_nonzero": "GC104",
    "__index__": "GC106",
    "tensor_split": "GC106",
    "tensor": "GC103",
    "as_tensor": "GC103",
    "manual_seed": "GC802",
    "pin_memory": "GC110",
}
_DATA_DEPENDENT = (
    "nonzero",
    "masked_select",
    "unique",
    "_unique2",
    "bincount",
    "repeat_interleave",
    "one_hot",
    "argwhere",
)
_INDEXING = ("__getitem__", "__setitem__", "index", "index_put_", "index_put")

ADVICE = {
    "GC101": ("the region waits for the device", "synchronise before entering and after the replay"),
    "GC102": ("the region reads a device value on the host", "keep it on the device and read it after the replay"),
    "GC103": (
        "the region copies from pageable host memory to the device",
        "allocate before capture and refresh the buffer in place, outside",
    ),
    "GC104": ("Python control flow asks a device tensor", "choose on the device, for instance with torch.where"),
    "GC105": ("a device tensor is indexed with host values", "hold the index in a device buffer and use index_select"),
    "GC106": ("slice bounds are read from a device tensor", "index with arange and a mask"),
    "GC107": ("the shape of a result depends on data", "use torch.where and keep the count on the device"),
    "GC108": ("the region asks whether work has finished", "query before capture or after the replay"),
    "GC110": ("pinned memory is allocated inside the region", "allocate pinned staging before capture and keep it"),
    "GC202": ("a forked stream is not joined when the capture ends", "let the capturing stream wait for every fork"),
    "GC203": ("the capture waits for work issued before it", "wait before capture, or use external events"),
    "GC801": ("a generator that is not registered draws numbers", "register it with the graph before capture"),
    "GC802": ("the region touches the generator's state on the host", "seed before capture"),
    "GC111": ("the region depends on the legacy default stream", "launch on the current stream only"),
    "GC505": ("device memory is asked of another allocator inside the region", "allocate before the capture"),
    "GC601": ("a kernel is tuned inside the region", "run every variant once in warm-up"),
    "GC608": ("the capture failed", "see the error of the driver below"),
}


def is_exhausted(error: BaseException) -> bool:
    """Whether the device ran out of memory: that is no refusal of the capture."""
    return isinstance(error, torch.cuda.OutOfMemoryError)


def refused(error: BaseException, log: Log, requests: Sequence[Request] = ()) -> CaptureRefused:
    """The refusal that an error inside a capture amounts to.

    Args:
        requests: what other allocators were asked for. CUDA refuses such a request with no word of it, and the capture
            fails later, at whatever comes next.
    """
    device = [request for request in requests if request.kind in (DEVICE, POOLED)]
    code = _code(error, log)
    if code == "GC608" and device:
        what, advice = ADVICE["GC505"]
        return CaptureRefused("GC505", f"{what} ({device[-1].function})", advice, device[-1].where)
    what, advice = ADVICE[code]
    where = exception_location(error) or log.where
    detail = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if code == "GC608":
        what = f"{what}: {detail}"
    return CaptureRefused(code, what, advice, where)


def _code(error: BaseException, log: Log) -> str:
    text = str(error)
    if "unjoined" in text or "Unjoined" in text:
        return "GC202"
    if "StreamCaptureImplicit" in text or "legacy stream" in text:
        return "GC111"
    if "isolation" in text.lower():
        return "GC203"
    if "generator" in text.lower() and ("regist" in text.lower() or "not in capture mode" in text):
        return "GC801"
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame.f_code
        for (path, name), code in _BY_FRAME.items():
            if frame.co_name == name and frame.co_filename.replace(os.sep, "/").endswith(path):
                return code
        trace = trace.tb_next
    operator = log.current.split(".")[1] if log.current.count(".") else log.current
    if log.function in _BY_FUNCTION:
        return _BY_FUNCTION[log.function]
    if any(operator.startswith(name) for name in _DATA_DEPENDENT):
        return "GC107"
    if operator == "_local_scalar_dense":
        return "GC106" if log.function == "__getitem__" else "GC102"
    if log.function in _INDEXING:
        return "GC107" if operator == "index" and "copy" not in text else "GC105"
    if operator in ("_to_copy", "copy_", "lift_fresh"):
        return "GC102" if log.function in ("cpu", "tolist", "numpy", "item", "__repr__", "__format__") else "GC103"
    return "GC608"
