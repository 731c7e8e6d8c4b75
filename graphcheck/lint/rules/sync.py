"""GC1xx: what a capturing stream refuses."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from graphcheck.finding import Severity
from graphcheck.lint import operators
from graphcheck.lint.log import Call, Format, Index, Log, Loop, Mode, Test
from graphcheck.lint.rules.problem import Problem, problem, quoted, receiver
from graphcheck.lint.values import Kind, Value

_STREAMLIKE = ("stream", "event")


def explicit_synchronisation(log: Log) -> Iterator[Problem]:
    """GC101."""
    for call in log.calls():
        like = call.receiver.kind in (Kind.STREAM, Kind.EVENT) or _named_like(call, _STREAMLIKE)
        if call.name in operators.SYNCHRONISING or (call.method == "synchronize" and like):
            yield problem(
                "GC101",
                call,
                f"{quoted(call.node)} waits for work that a capturing stream only records, so the capture fails",
                "synchronise before the capture and after the replay",
            )


def blocking_read(log: Log) -> Iterator[Problem]:
    """GC102."""
    for event in log.events:
        if not event.place.captured:
            continue
        subject: ast.AST | None = None
        if isinstance(event, Format) and event.value.on_device:
            subject = event.node.value if isinstance(event.node, ast.FormattedValue) else event.node
        elif isinstance(event, Loop) and event.value.kind is Kind.READ:
            continue
        elif isinstance(event, Call):
            subject = _read_by(event)
        if subject is not None:
            yield problem(
                "GC102",
                event,
                f"{quoted(event.node)} reads {quoted(subject)} on the host, but while capturing no value exists yet",
                "keep it a tensor inside the region and read it after the replay",
            )


def _read_by(call: Call) -> ast.AST | None:
    """What a call reads on the host, if it reads a device tensor."""
    node = call.node
    if not isinstance(node, ast.Call):
        return None
    name, first = call.name, call.arguments[0] if call.arguments else None
    if name.startswith(".") and isinstance(node.func, ast.Attribute):
        unseen = call.receiver.kind is Kind.UNKNOWN and not node.args and name in (".item", ".cpu")
        if call.method in operators.HOST_READS and (call.receiver.on_device or unseen):
            return node.func.value
        if name == ".to" and call.receiver.on_device and call.result.kind is Kind.HOST:
            return None if "non_blocking" in call.keywords else node.func.value
        return None
    if name in operators.HOST_BUILTINS and first is not None and first.on_device:
        return node.args[0]
    if name == "range" and any(value.on_device for value in call.arguments):
        return node
    if name in ("print", "format", "str"):
        for argument, value in zip(node.args, call.arguments, strict=False):
            if value.on_device:
                return argument
    if name.startswith("torch.") and call.method in operators.READS_INSIDE and any(v.on_device for v in call.arguments):
        return node.args[0]
    return None


def upload(log: Log) -> Iterator[Problem]:
    """GC103 and, where the source is pinned and nobody keeps it, GC407."""
    for call in log.calls():
        if not isinstance(call.node, ast.Call):
            continue
        first = call.arguments[0] if call.arguments else None
        source: Value | None = None
        if call.name in operators.CREATES_FROM_DATA and call.result.on_device:
            if first is None or first.is_tensor or _holds_pointer(call.node):
                continue
            if first.kind is Kind.UNKNOWN and call.method != "tensor":
                continue
            yield problem(
                "GC103",
                call,
                f"{quoted(call.node)} uploads host data while capturing: refused, or a replay re-reads freed memory",
                "allocate the tensor before the capture and fill it with copy_ outside the region",
            )
            continue
        if call.method == "new_tensor" and call.receiver.on_device:
            source = first
        elif call.method in ("to", "cuda") and call.receiver.kind is Kind.HOST and call.result.on_device:
            source = call.receiver
        elif call.method == "copy_" and call.receiver.on_device and first is not None and first.kind is Kind.HOST:
            source = first
        if source is None:
            continue
        waits = call.keywords.get("non_blocking")
        temporary = source.fresh or not source.path
        if source.pinned and waits is not None and waits.constant is not False:
            if temporary:
                yield problem(
                    "GC407",
                    call,
                    f"{quoted(call.node)} records the address of a pinned temporary; every replay reads what lies there by then",
                    "keep the pinned buffer with the graph, or copy before the replay outside the region",
                )
        elif temporary or not source.pinned:
            yield problem(
                "GC103",
                call,
                f"{quoted(call.node)} copies from pageable host memory while capturing: refused, or re-read at every replay",
                "copy outside the region into a buffer that the region reads",
            )


def _holds_pointer(node: ast.Call) -> bool:
    return any(isinstance(part, ast.Attribute) and part.attr == "data_ptr" for part in ast.walk(node))


def control_flow(log: Log) -> Iterator[Problem]:
    """GC104."""
    advice = "choose on the device with torch.where, or capture one graph for each branch"
    for event in log.events:
        if not event.place.captured:
            continue
        if isinstance(event, Test) and event.value.on_device:
            yield problem(
                "GC104",
                event,
                f"'{event.how}' asks {quoted(event.node)} for its truth, which reads a device tensor on the host",
                advice if event.how != "assert" else "use torch._assert_async, or check outside the region",
            )
        elif isinstance(event, Call) and event.name in ("max", "min", "any", "all", "sorted") and event.arguments:
            several = event.name in ("max", "min") and sum(value.on_device for value in event.arguments) > 1
            if event.arguments[0].on_device and (several or len(event.arguments) == 1):
                yield problem(
                    "GC104",
                    event,
                    f"{quoted(event.node)} compares device tensors with Python's bool(), which reads them on the host",
                    f"use the tensor's own .{event.name}(), or torch.maximum and torch.minimum",
                )


def host_index(log: Log) -> Iterator[Problem]:
    """GC105."""
    for event in log.events:
        if not isinstance(event, Index) or not event.place.captured or not event.base.on_device:
            continue
        node = event.node
        if not isinstance(node, ast.Subscript):
            continue
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        values = event.index.items if isinstance(node.slice, ast.Tuple) and event.index.items else (event.index,)
        listed = any(_is_list(part, value) for part, value in zip(parts, values, strict=False))
        if listed or any(value.kind is Kind.HOST for value in values):
            yield problem(
                "GC105",
                event,
                f"{quoted(node)} indexes a device tensor with host data, which must be uploaded while capturing",
                "keep the index in a device tensor made before the capture and use index_select",
            )
        elif event.stored is not None and isinstance(event.stored.constant, (int, float)):
            yield problem(
                "GC105",
                event,
                f"{quoted(node)} = {event.stored.constant!r} uploads a Python number while capturing, which is refused",
                "write with fill_, zero_ or masked_fill_ on a view (narrow, select)",
            )


def _is_list(node: ast.expr, value: Value) -> bool:
    """Whether an index is a Python list of host numbers."""
    if isinstance(node, ast.List):
        return not any(member.on_device for member in value.items or ())
    if value.kind is not Kind.CONTAINER or value.made != "list" or value.element is None:
        return False
    return value.element.kind in (Kind.CONSTANT, Kind.VARYING, Kind.READ)


def device_bounds(log: Log) -> Iterator[Problem]:
    """GC106."""
    advice = "mask with torch.arange and the bound, or use index_select on a fixed index buffer"
    for event in log.events:
        if not event.place.captured:
            continue
        if isinstance(event, Index) and any(bound.on_device for bound in event.bounds):
            yield problem(
                "GC106",
                event,
                f"a bound of {quoted(event.node)} is a device tensor and must be read on the host",
                advice,
            )
        elif isinstance(event, Call) and event.method in ("narrow", "split", "tensor_split"):
            inputs = event.arguments if event.name.startswith(".") else event.arguments[1:]
            if any(value.on_device for value in inputs) and (
                event.receiver.on_device or event.name.startswith("torch.")
            ):
                yield problem(
                    "GC106",
                    event,
                    f"{quoted(event.node)} takes a bound from a device tensor and reads it on the host",
                    advice,
                )


def data_dependent_shape(log: Log) -> Iterator[Problem]:
    """GC107."""
    for event in log.events:
        if not event.place.captured:
            continue
        subject = ""
        if isinstance(event, Index) and event.base.on_device:
            members = event.index.items or (event.index,)
            masked = any(member.on_device and member.boolean for member in members)
            if masked and (event.stored is None or event.stored.is_tensor):
                subject = quoted(event.node)
        elif isinstance(event, Call) and _depends(event):
            subject = quoted(event.node)
        if subject:
            yield problem(
                "GC107",
                event,
                f"the shape of {subject} depends on data, so its size must be read on the host",
                "keep the full shape and mask: torch.where(mask, x, 0), or pass the size (output_size=, num_classes=)",
            )


def _depends(call: Call) -> bool:
    torch_function = call.name.startswith(("torch.", "cupy."))
    inputs = call.arguments if torch_function else [call.receiver, *call.arguments]
    if not inputs or not (inputs[0].on_device or (inputs[0].kind is Kind.UNKNOWN and torch_function)):
        return False
    if call.method in operators.DATA_DEPENDENT:
        return inputs[0].on_device and "size" not in call.keywords
    if call.method == "where":
        return torch_function and len(call.arguments) == 1 and inputs[0].on_device
    if call.method == "one_hot":
        return inputs[0].on_device and len(inputs) < 2 and "num_classes" not in call.keywords
    if call.method == "repeat_interleave":
        repeats = call.keywords.get("repeats", inputs[1] if len(inputs) > 1 else inputs[0])
        return repeats.on_device and "output_size" not in call.keywords
    return False


def query(log: Log) -> Iterator[Problem]:
    """GC108."""
    for call in log.calls():
        if call.name == ".query" and (
            call.receiver.kind in (Kind.STREAM, Kind.EVENT) or _named_like(call, _STREAMLIKE)
        ):
            yield problem(
                "GC108",
                call,
                f"{quoted(call.node)} asks whether work is done that is only being recorded; the capture fails",
                "query before the capture or after the replay",
            )


def _named_like(call: Call, words: tuple[str, ...]) -> bool:
    if call.receiver.kind is not Kind.UNKNOWN:
        return False
    name = receiver(call.node).rpartition(".")[2].lower()
    return any(word in name for word in words)


def pinned_allocation(log: Log) -> Iterator[Problem]:
    """GC110."""
    for call in log.calls():
        wanted = call.keywords.get("pin_memory")
        if call.name == ".pin_memory" or (
            wanted is not None and wanted.constant is True and "DataLoader" not in call.name
        ):
            yield problem(
                "GC110",
                call,
                f"{quoted(call.node)} allocates pinned memory while capturing; the host allocator polls events there",
                "allocate pinned staging before the capture and keep it",
            )


def background_thread(log: Log) -> Iterator[Problem]:
    """GC109, weakly: a loader that pins memory in the function that captures."""
    opened = any(event.place.captured for event in log.events)
    for call in log.calls(Mode.HOST):
        wanted = call.keywords.get("pin_memory")
        if opened and call.method == "DataLoader" and wanted is not None and wanted.constant is True:
            yield problem(
                "GC109",
                call,
                "this loader's pinning thread calls CUDA while the function captures in global mode",
                "capture before the loader starts, or with capture_error_mode='thread_local'",
                Severity.WARNING,
            )


def default_stream(log: Log) -> Iterator[Problem]:
    """GC111, weakly: a wrapper built on the default stream before a captured backward pass."""
    if not any(call.method == "backward" for call in log.calls()):
        return
    for call in log.calls(Mode.HOST, Mode.PREPARE):
        on_stream = any("stream" in context for context in call.place.contexts)
        if call.method in ("DistributedDataParallel", "FullyShardedDataParallel", "DDP", "FSDP") and not on_stream:
            yield problem(
                "GC111",
                call,
                f"{quoted(call.node)} ties gradient hooks to the default stream, which the captured backward drags in",
                "build and warm up the wrapper inside 'with torch.cuda.stream(side)'",
                Severity.WARNING,
            )


RULES = {
    explicit_synchronisation: ("GC101",),
    blocking_read: ("GC102",),
    upload: ("GC103", "GC407"),
    control_flow: ("GC104",),
    host_index: ("GC105",),
    device_bounds: ("GC106",),
    data_dependent_shape: ("GC107",),
    query: ("GC108",),
    background_thread: ("GC109",),
    pinned_allocation: ("GC110",),
    default_stream: ("GC111",),
}
