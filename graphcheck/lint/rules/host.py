"""GC307 to GC313: what Python does at capture only, and what it sets around the region."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from graphcheck.finding import Severity
from graphcheck.lint import operators
from graphcheck.lint.log import Call, Divided, Log, Mode, Store
from graphcheck.lint.package import FunctionInfo
from graphcheck.lint.rules.frozen import parameters
from graphcheck.lint.rules.guards import creates_once
from graphcheck.lint.rules.problem import Problem, problem, quoted
from graphcheck.lint.values import Kind

_MUTATORS = frozenset({"append", "extend", "insert", "add", "update", "appendleft", "setdefault"})
_HOOKS = frozenset(
    {"register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook", "register_backward_hook"}
)
_CONTEXT_SWITCHES = frozenset(
    f"torch.{name}"
    for name in [
        "set_autocast_enabled",
        "set_autocast_dtype",
        "set_autocast_gpu_dtype",
        "set_float32_matmul_precision",
        "use_deterministic_algorithms",
        "backends.cuda.enable_flash_sdp",
        "backends.cuda.enable_math_sdp",
        "backends.cuda.enable_mem_efficient_sdp",
    ]
)


def capture_aware(log: Log) -> Iterator[Problem]:
    """GC307: asking for the capture status changes what is computed."""
    for event in log.events:
        if isinstance(event, Divided) and event.place.captured:
            names = event.skipped or event.captured
            side = "only eager execution" if event.skipped else "only the capture"
            subject = f"{names[0]} is computed one way while capturing and another way eagerly"
            if not event.both:
                subject = f"{side} computes {names[0]} here, so graph and eager run different code"
            test = event.node.test if isinstance(event.node, ast.If) else event.node
            yield problem(
                "GC307",
                event,
                subject,
                "use the capture status for assertions only, and compute the same in both",
                Severity.WARNING if event.both else Severity.ERROR,
                node=test,
            )


def side_effect(log: Log) -> Iterator[Problem]:
    """GC308: Python state that the region changes once, at capture."""
    free = log.component is None and log.contract is None
    emptied = _emptied(log)
    for event in log.events:
        if not event.place.captured:
            continue
        if isinstance(event, Store) and event.path.removesuffix("[]") in emptied and event.path.endswith("[]"):
            name = event.path.removesuffix("[]")
            yield problem(
                "GC308",
                event,
                f"{quoted(event.node)} fills {name} at capture only: once emptied (line {emptied[name]}), replays leave it empty",
                "write the value into a buffer, and hand that buffer to the reader outside the region",
            )
        elif isinstance(event, Store) and not event.local and _persists(event.path, event, log):
            if (
                creates_once(event)
                or (event.augmented and event.before.is_tensor)
                or (event.value.is_tensor and event.augmented)
            ):
                continue
            outermost = free and event.place.depth == 0
            host_step = event.augmented and not event.value.on_device
            if (
                host_step
                or (event.value.holds_device_tensor() and not outermost)
                or (event.value.varies and not outermost)
            ):
                yield problem(
                    "GC308",
                    event,
                    f"{event.path} is set by Python, which runs at capture only: replays leave it as it was then",
                    "return it as an output, or write into a static buffer with copy_ or add_",
                )
        elif (
            isinstance(event, Call)
            and event.method in _MUTATORS
            and event.receiver.path.startswith(("self.", "buffers."))
        ) and (
            event.name == f".{event.method}" and not event.receiver.is_tensor and event.receiver.kind is Kind.CONTAINER
        ):
            yield problem(
                "GC308",
                event,
                f"{quoted(event.node)} runs at capture only: replays add nothing to {event.receiver.path}",
                "do it outside the region, after the replay",
            )


def _emptied(log: Log) -> dict[str, int]:
    """Containers on objects that code between replays empties, with the line."""
    return {
        call.receiver.path: getattr(call.node, "lineno", 0)
        for call in log.calls(Mode.REFRESH, Mode.OBSERVE)
        if call.name == ".clear" and call.receiver.kind is Kind.CONTAINER and call.receiver.path.startswith("self.")
    }


def _persists(path: str, event: Store, log: Log) -> bool:
    if "." in path and event.base.kind in (Kind.OBJECT, Kind.BUFFERS):
        return not event.base.fresh
    root = path.partition(".")[0]
    if event.base.kind is Kind.UNKNOWN and not event.base.path and "." not in path:
        return not event.local
    return log.contract is not None and event.place.depth == 0 and "." in path and root in parameters(log)


def optimiser(log: Log) -> Iterator[Problem]:
    """GC309: step counts, learning rates and loss scales on the host."""
    for call in log.calls():
        kind = call.receiver.symbol.rpartition(".")[2]
        if call.method == "step" and kind in operators.SUPPORTS_CAPTURABLE and call.receiver.constant != "capturable":
            yield problem(
                "GC309",
                call,
                f"{quoted(call.node)}: this {kind} keeps step count and bias correction on the host, frozen at capture",
                f"{kind}(..., capturable=True) with the learning rate in a tensor",
            )
        elif kind == "GradScaler" and call.method in ("step", "update", "unscale_"):
            yield problem(
                "GC309",
                call,
                f"{quoted(call.node)} decides on the host whether to step; replays repeat the decision of the capture",
                "call the scaler's step and update outside the region",
            )


def leaked_flag(log: Log) -> Iterator[Problem]:
    """GC310, weakly: an object copied while a flag is set for the capture only."""
    raised: dict[str, Store] = {}
    copied: dict[str, Call] = {}
    for event in log.events:
        if event.place.mode is not Mode.HOST:
            continue
        if isinstance(event, Store) and "." in event.path and not event.augmented:
            if event.value.constant is True:
                raised[event.path] = event
            elif event.value.constant is False and event.path in raised:
                root = event.path.rpartition(".")[0]
                if root in copied:
                    yield problem(
                        "GC310",
                        copied[root],
                        f"{quoted(copied[root].node)} copies {root} while {event.path} is set for the capture; the copy keeps it",
                        "clear the flag on the stored copy as well",
                        Severity.WARNING,
                    )
        elif (
            isinstance(event, Call)
            and event.name in ("copy.copy", "dataclasses.replace")
            and event.arguments
            and any(path.startswith(f"{event.arguments[0].path}.") for path in raised)
        ):
            copied[event.arguments[0].path] = event


def hooks(log: Log) -> Iterator[Problem]:
    """GC313: a hook on a part of a graphed module."""
    graphed = {
        value.path
        for call in log.calls(Mode.HOST)
        if call.method == "make_graphed_callables" and call.arguments
        for value in (call.arguments[0], *(call.arguments[0].items or ()))
        if value.path
    }
    for call in log.calls(Mode.HOST):
        if call.method in _HOOKS and any(call.receiver.path.startswith(f"{path}.") for path in graphed):
            yield problem(
                "GC313",
                call,
                f"{quoted(call.node)}: the graphed module replays as one block, so hooks of its parts never run",
                "hook the module itself, or graph its parts separately",
            )


def counting_hook(log: Log) -> Iterator[Problem]:
    """GC313: a hook of a module that the region calls keeps books on the host."""
    called = {ast.unparse(call.node.func) for call in log.calls() if isinstance(call.node, ast.Call)}
    for call in log.calls(Mode.PREPARE):
        if call.method not in _HOOKS or call.receiver.path not in called or not call.arguments:
            continue
        hook = call.arguments[0].definition
        if not isinstance(hook, FunctionInfo):
            continue
        kept = _kept_on_host(hook, {store.path: store for store in log.stores(Mode.PREPARE)})
        if kept:
            yield problem(
                "GC313",
                call,
                f"{quoted(call.node)}: the hook changes {kept} in Python, which runs at capture only; replays skip it",
                f"hold {kept} in a device tensor that the hook changes in place, or count replays outside",
            )


def _kept_on_host(hook: FunctionInfo, prepared: dict[str, Store]) -> str:
    """An attribute that holds a number or a container of the host and that a hook changes; empty where there is none."""
    for node in ast.walk(hook.node):
        target: ast.expr | None = None
        if isinstance(node, ast.AugAssign):
            target = node.target
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATORS:
            target = node.func.value
        path = ast.unparse(target) if isinstance(target, ast.Attribute) else ""
        if path in prepared and prepared[path].value.kind in (Kind.CONSTANT, Kind.CONTAINER):
            return path
    return ""


def switched_context(log: Log) -> Iterator[Problem]:
    """GC310, weakly: staging switches a mode that only the capture obeyed."""
    for call in log.calls(Mode.REFRESH):
        values = [value for value in call.arguments if log.changes(value)]
        if call.name in _CONTEXT_SWITCHES and values:
            yield problem(
                "GC310",
                call,
                f"{quoted(call.node)} switches by {min(values[0].sources, default='the host')}, but replays keep the mode of the capture",
                "set one mode for capture and replays, or put it into the graph key",
                Severity.WARNING,
            )


RULES = {
    capture_aware: ("GC307",),
    side_effect: ("GC308",),
    optimiser: ("GC309",),
    leaked_flag: ("GC310",),
    switched_context: ("GC310",),
    hooks: ("GC313",),
    counting_hook: ("GC313",),
}
