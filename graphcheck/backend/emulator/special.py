"""Operators whose rule does not follow from their schema: copies across the bus, factories, geometry in place."""

from __future__ import annotations

from typing import Any

import torch

from graphcheck.backend.emulator import host_read
from graphcheck.backend.emulator.device import DEVICE
from graphcheck.backend.emulator.geometry import Spec, results
from graphcheck.backend.emulator.memory import HEAP, Handle
from graphcheck.backend.emulator.ordering import ORDER
from graphcheck.backend.emulator.pinned import PINNED
from graphcheck.backend.emulator.tensor import DeviceTensor, become, wrap
from graphcheck.errors import UnknownOperator
from graphcheck.finding import Severity

aten = torch.ops.aten
_NON_BLOCKING = "pass non_blocking=True from pinned memory, or copy before the capture"


def follow(tensor: DeviceTensor) -> None:
    """Give the wrapper the geometry (and where it grew, the memory) that its raw tensor has now."""
    raw = tensor._raw
    handle = tensor._handle
    if raw.untyped_storage().nbytes() > max(handle.block.nbytes, handle.block.capacity):
        block, raw = HEAP.adopt(raw)
        handle = Handle(block)
    become(tensor, raw, handle)


def resized(rule: Any, args: Any, kwargs: Any, raws: Any, raw_kwargs: Any) -> Any:
    """Run an operator whose ``out=`` tensors have another shape than its result: they get new memory."""
    names = [argument.name for argument in rule.func._schema.arguments if argument.is_out]
    outs = {name: torch.empty(0, dtype=kwargs[name].dtype) for name in names}
    result = rule.func(*raws, **{**raw_kwargs, **outs})
    for name, raw in outs.items():
        block, raw = HEAP.adopt(raw)
        become(kwargs[name], raw, Handle(block))
    return result


def fresh(spec: Spec) -> DeviceTensor:
    """A poisoned allocation, of the pool while recording."""
    if DEVICE.capture is not None and DEVICE.recording:
        return DEVICE.capture.allocate(spec)
    block = HEAP.allocate(spec.nbytes)
    return wrap(block.view(spec.dtype, spec.size, spec.stride, spec.offset), Handle(block))


def _to_device(kwargs: dict[str, Any], first: Any) -> bool:
    wanted = kwargs.get("device")
    return bool(wanted.type == "cuda") if wanted is not None else first is not None


def pin(host: torch.Tensor) -> torch.Tensor:
    """A pinned copy of a host tensor."""
    if DEVICE.capture is not None and DEVICE.recording:
        DEVICE.note(
            "GC110",
            "pinned host memory is allocated while the stream is capturing",
            "allocate pinned staging before the capture and keep it",
            Severity.WARNING,
        )
    pinned = PINNED.empty(host.shape, host.dtype, host.stride())
    return pinned.copy_(host)


def _factory(mode: Any, rule: Any, args: Any, kwargs: Any, raws: Any, raw_kwargs: Any, first: Any) -> Any:
    """Factories: guarded, poisoned memory on the device; pinned memory on the host."""
    if not _to_device(kwargs, first):
        if kwargs.get("pin_memory"):
            return pin(rule.func(*raws, **{**raw_kwargs, "pin_memory": False, "device": torch.device("cpu")}))
        return NotImplemented
    recording = DEVICE.capture is not None and DEVICE.recording
    if rule.packet.startswith(("empty", "new_empty")):
        return fresh(results(rule.func, args, kwargs))
    if recording:
        return NotImplemented
    out = fresh(results(rule.func, args, kwargs))
    raw_kwargs = {**raw_kwargs, "device": torch.device("cpu")}
    if rule.packet in ("zeros", "zeros_like", "new_zeros"):
        out._raw.zero_()
    elif rule.packet in ("ones", "ones_like", "new_ones"):
        out._raw.fill_(1)
    else:
        out._raw.copy_(rule.func(*raws, **raw_kwargs))
    launched_outside(rule)
    return out


def launched_outside(rule: Any) -> None:
    """Note work that runs while a capture goes on, on a stream that is not part of it."""
    if DEVICE.capture is not None:
        DEVICE.capture.outside.add(DEVICE.stream)
        DEVICE.note(
            "GC204",
            f"{rule.func} was issued on a stream that is not part of the capture: it ran once, now, and no replay will "
            "run it",
            "let the stream wait for the capturing one (side.wait_stream(torch.cuda.current_stream())) and join it",
        )


def _scalar(mode: Any, rule: Any, args: Any, kwargs: Any, raws: Any, raw_kwargs: Any, first: Any) -> Any:
    if first is not None:
        host_read.scalar_read()
    return rule.func(*raws)


def _copy(mode: Any, rule: Any, args: Any, kwargs: Any, raws: Any, raw_kwargs: Any, first: Any) -> Any:
    """``dst.copy_(src)``, by where the two lie."""
    dst, src = args[0], args[1]
    to_device, from_device = type(dst) is DeviceTensor, type(src) is DeviceTensor
    if to_device == from_device:
        return NotImplemented
    if DEVICE.capture is not None and DEVICE.recording:
        non_blocking = bool(kwargs.get("non_blocking", args[2] if len(args) > 2 else False))
        _check_transfer(src if to_device else dst, non_blocking, to_device)
        DEVICE.capture.append(rule, args, kwargs)
        return dst
    rule.func(*raws, **raw_kwargs)
    if DEVICE.capture is not None:
        launched_outside(rule)
    else:
        _transferred(dst, src, bool(kwargs.get("non_blocking", args[2] if len(args) > 2 else False)))
    if DEVICE.observer is not None:
        DEVICE.observer(rule, [dst] if to_device else [], dst)
    return dst


def _transferred(dst: torch.Tensor, src: torch.Tensor, non_blocking: bool) -> None:
    """Note a copy between host and device: one that is not asynchronous, or not from pinned memory, the host awaits."""
    if isinstance(dst, DeviceTensor):
        ORDER.written([dst._handle.block])
    pinned = PINNED.find(src if isinstance(dst, DeviceTensor) else dst)
    if not (non_blocking and pinned is not None):
        ORDER.host_waits(ORDER.position(DEVICE.stream))
    elif isinstance(dst, DeviceTensor):
        ORDER.reads_host([pinned])


def host_written(rule: Any, args: Any, kwargs: Any) -> None:
    """Note what an operator on the host writes to pinned memory."""
    for name in rule.written_names:
        value = rule.argument(name, args, kwargs)
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            block = PINNED.find(tensor) if isinstance(tensor, torch.Tensor) else None
            if block is not None:
                ORDER.host_writes(block)


def _check_transfer(host: torch.Tensor, non_blocking: bool, to_device: bool) -> None:
    """Refuse what a capturing stream refuses of a copy between host and device."""
    pinned = PINNED.find(host) is not None
    if to_device and not pinned:
        host_read.upload("a copy from pageable host memory to the device")
    if not to_device and not (pinned and non_blocking):
        host_read.read("GC102", "a blocking copy from the device to the host")
    if not non_blocking:
        DEVICE.refuse("GC101", "a blocking copy from pinned memory waits for the device", _NON_BLOCKING)


def _to_copy(mode: Any, rule: Any, args: Any, kwargs: Any, raws: Any, raw_kwargs: Any, first: Any) -> Any:
    """``.to``, ``.cuda``, ``.cpu`` and casts."""
    source = args[0]
    to_device = _to_device(kwargs, first)
    from_device = type(source) is DeviceTensor
    recording = DEVICE.capture is not None and DEVICE.recording
    host_kwargs = {**raw_kwargs, "device": torch.device("cpu")}
    pinned = bool(host_kwargs.pop("pin_memory", False))
    if to_device and from_device:
        return NotImplemented
    if not to_device and not from_device:
        copied = rule.func(*raws, **raw_kwargs)
        return pin(copied) if pinned else copied
    if not to_device:
        host_read.read("GC102", "a copy from the device to the host (cpu(), to('cpu'))")
        copied = rule.func(*raws, **host_kwargs)
        return pin(copied) if pinned else copied
    if recording:
        _check_transfer(source, bool(kwargs.get("non_blocking")), True)
        out = fresh(results(rule.func, args, kwargs))
        with mode.reentered():
            return out.copy_(source, non_blocking=True)
    copied = rule.func(*raws, **host_kwargs)
    out = fresh(Spec(copied))
    out._raw.copy_(copied)
    launched_outside(rule)
    return out


def _set(mode: Any, rule: Any, args: Any, kwargs: Any, raws: Any, raw_kwargs: Any, first: Any) -> Any:
    """``set_``: the tensor takes over other memory."""
    tensor = args[0]
    if type(tensor) is not DeviceTensor:
        return NotImplemented
    if len(args) == 1:
        block = HEAP.allocate(0)
        become(tensor, block.view(tensor.dtype, (0,), (1,), 0), Handle(block))
        return tensor
    source = args[1]
    if type(source) is not DeviceTensor:
        raise UnknownOperator("the emulator knows set_ from a device tensor only")
    raw = source._raw.detach()
    if len(args) > 2:
        raw = torch.as_strided(raw, args[3], args[4] if len(args) > 4 else _contiguous(args[3]), args[2])
    become(tensor, raw, source._handle)
    return tensor


def _contiguous(size: Any) -> Any:
    return torch.empty(size, device="meta").stride()


def _resize(mode: Any, rule: Any, args: Any, kwargs: Any, raws: Any, raw_kwargs: Any, first: Any) -> Any:
    """``resize_``: other geometry, and other memory where the block is too small."""
    tensor = args[0]
    if type(tensor) is not DeviceTensor:
        return NotImplemented
    size = tuple(args[1].shape) if isinstance(args[1], torch.Tensor) else tuple(args[1])
    if size == tuple(tensor.shape):
        return tensor
    meta = torch.empty(size, dtype=tensor.dtype, device="meta")
    offset = tensor.storage_offset()
    block = tensor._handle.block
    if (meta.numel() + offset) * tensor.element_size() <= block.nbytes:
        become(tensor, block.view(tensor.dtype, size, meta.stride(), offset), tensor._handle)
        return tensor
    if DEVICE.capture is not None and DEVICE.recording:
        raise UnknownOperator("resize_ beyond the allocation inside a capture: size the buffer before the capture")
    old = tensor._raw
    grown = HEAP.allocate(meta.numel() * tensor.element_size())
    raw = grown.view(tensor.dtype, size, meta.stride(), 0)
    if old.numel():
        raw.view(-1)[: old.numel()].copy_(old.reshape(-1))
    become(tensor, raw, Handle(grown))
    return tensor


def _choose_attention(mode: Any, rule: Any, args: Any, kwargs: Any, raws: Any, raw_kwargs: Any, first: Any) -> Any:
    return NotImplemented if first is None else 0  # the math backend: it is made of operators that can be recorded


def _index(mode: Any, rule: Any, args: Any, kwargs: Any, raws: Any, raw_kwargs: Any, first: Any) -> Any:
    """Indices that are boolean masks have a data-dependent count; host indices travel first."""
    if type(args[0]) is not DeviceTensor or DEVICE.capture is None or not DEVICE.recording:
        return NotImplemented
    indices = args[1]
    if any(type(index) is not DeviceTensor and isinstance(index, torch.Tensor) and index.dim() for index in indices):
        host_read.read("GC105", "a host tensor indexes a device tensor: it must first travel to the device")
    masked = any(isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in indices)
    putting = "index_put" in rule.packet
    if masked and putting and not (args[3] if len(args) > 3 else False) and args[2].numel() == 1:
        return NotImplemented  # becomes masked_fill, which needs no count and takes the number as it is
    if putting and type(args[2]) is not DeviceTensor:
        host_read.read("GC105", "a Python number is assigned through an index: it must first travel to the device")
    if not masked:
        return NotImplemented
    host_read.read("GC107", "a boolean mask selects elements: their number depends on data, which the host must read")
    return NotImplemented


def _repeat(mode: Any, rule: Any, args: Any, kwargs: Any, raws: Any, raw_kwargs: Any, first: Any) -> Any:
    if first is not None and rule.argument("output_size", args, kwargs) is None:
        host_read.read("GC107", "repeat_interleave without output_size must read the total on the host")
    return NotImplemented


def _is_pinned(mode: Any, rule: Any, args: Any, kwargs: Any, raws: Any, raw_kwargs: Any, first: Any) -> Any:
    return first is None and PINNED.find(args[0]) is not None


def _pin_memory(mode: Any, rule: Any, args: Any, kwargs: Any, raws: Any, raw_kwargs: Any, first: Any) -> Any:
    return NotImplemented if first is not None else pin(args[0])


HANDLERS: dict[Any, Any] = {aten.repeat_interleave.Tensor: _repeat}
PACKETS: dict[tuple[str, str], Any] = {
    **{
        ("aten", name): _factory
        for name in (
            "empty",
            "empty_like",
            "empty_strided",
            "new_empty",
            "new_empty_strided",
            "zeros",
            "zeros_like",
            "new_zeros",
            "ones",
            "ones_like",
            "new_ones",
            "full",
            "full_like",
            "new_full",
        )
    },
    ("aten", "_local_scalar_dense"): _scalar,
    ("aten", "copy_"): _copy,
    ("aten", "_to_copy"): _to_copy,
    ("aten", "set_"): _set,
    ("aten", "resize_"): _resize,
    ("aten", "resize_as_"): _resize,
    ("aten", "_fused_sdp_choice"): _choose_attention,
    ("aten", "is_pinned"): _is_pinned,
    ("aten", "_pin_memory"): _pin_memory,
    **{("aten", name): _index for name in ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")},
}
