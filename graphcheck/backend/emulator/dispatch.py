"""The dispatch mode: every operator below autograd passes here, runs at once or goes onto the tape."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from graphcheck.backend.emulator import host_read, special
from graphcheck.backend.emulator.device import DEVICE
from graphcheck.backend.emulator.generator import GENERATORS
from graphcheck.backend.emulator.ordering import ORDER
from graphcheck.backend.emulator.rules import Rule
from graphcheck.backend.emulator.tensor import DeviceTensor, adopt, wrap
from graphcheck.errors import UnknownOperator

CPU = torch.device("cpu")
_RULES: dict[Any, Rule] = {}
_inference = torch.is_inference_mode_enabled


def rule_of(func: Any) -> Rule:
    """The rule for an operator, made on first use."""
    rule = _RULES.get(func)
    if rule is None:
        rule = _RULES[func] = Rule(func)
        rule.special = special.HANDLERS.get(func) or special.PACKETS.get((func.namespace, rule.packet))
    return rule


class DispatchMode(TorchDispatchMode):
    """Runs operators on raw tensors, or records them."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the guard against compilation would cost as much as a small operator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rule = _RULES.get(func)
        if rule is None:
            rule = rule_of(func)
        kwargs = kwargs if kwargs is not None else {}
        if _inference():
            # Raw memory outlives the block; as inference tensors it could not be written outside of it.
            with torch._C._InferenceMode(False), torch.no_grad():
                return self.issue(rule, args, kwargs)
        return self.issue(rule, args, kwargs)

    def issue(self, rule: Rule, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run or record one operator."""
        first: DeviceTensor | None = None
        host = False
        raws: list[Any] = []
        for arg in args:
            kind = type(arg)
            if kind is DeviceTensor:
                raws.append(arg._raw)
                if first is None:
                    first = arg
            elif kind is list or kind is tuple:
                raw_items, inner, inner_host = _unwrap_all(arg)
                raws.append(raw_items)
                host = host or inner_host
                if first is None:
                    first = inner
            else:
                raws.append(arg)
                if isinstance(arg, torch.Tensor) and arg.dim():
                    host = True
        raw_kwargs = kwargs
        if kwargs:
            raw_kwargs = {}
            for name, arg in kwargs.items():
                kind = type(arg)
                if kind is DeviceTensor:
                    raw_kwargs[name] = arg._raw
                    if first is None:
                        first = arg
                elif kind is list or kind is tuple:
                    raw_kwargs[name], inner, inner_host = _unwrap_all(arg)
                    host = host or inner_host
                    if first is None:
                        first = inner
                else:
                    raw_kwargs[name] = arg
                    if isinstance(arg, torch.Tensor) and arg.dim():
                        host = True
        if rule.special is not None:
            answer = rule.special(self, rule, args, kwargs, raws, raw_kwargs, first)
            if answer is not NotImplemented:
                return answer
        to_device = first is not None
        if rule.factory:
            wanted = kwargs.get("device")
            if wanted is not None:
                to_device = wanted.type == "cuda"
            if to_device or first is not None:
                raw_kwargs = {**raw_kwargs, "device": CPU}
        if not to_device:
            if ORDER.readers:
                special.host_written(rule, args, kwargs)
            return rule.func(*raws, **raw_kwargs)
        if rule.body is not None:
            return self.enter(rule, args, kwargs)
        if rule.composite:
            with self:
                return rule.func.decompose(*args, **kwargs)
        if host and first is not None and not rule.host_arguments:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
                f"(in {rule.func})"
            )
        if rule.view:
            out = rule.func(*raws, **raw_kwargs)
            return _wrap_views(out, first)
        if DEVICE.capture is not None:
            if DEVICE.recording:
                return self.record(rule, args, kwargs)
            special.launched_outside(rule)
        return self.run(rule, args, kwargs, raws, raw_kwargs, first)

    def record(self, rule: Rule, args: Any, kwargs: dict[str, Any]) -> Any:
        """Put an operator onto the tape."""
        capture = DEVICE.capture
        if capture is None:
            raise RuntimeError("nothing is capturing")
        if rule.dynamic:
            host_read.read("GC107", f"the shape of the result of {rule.func} depends on data, which the host must read")
        if rule.compared:
            host_read.read("GC104", f"{rule.func} answers a Python bool from device data")
        if rule.random:
            GENERATORS.check(rule.argument("generator", args, kwargs) if "generator" in rule.names else None)
        if not rule.launches:
            raise UnknownOperator(
                f"the emulator has no rule for {rule.func}: it has neither a CPU kernel nor a Python body"
            )
        if rule.reshapes:
            raise UnknownOperator(f"the emulator cannot record {rule.func}, which changes geometry in place")
        return capture.record(rule, args, kwargs)

    def run(
        self,
        rule: Rule,
        args: Any,
        kwargs: dict[str, Any],
        raws: list[Any],
        raw_kwargs: dict[str, Any],
        first: DeviceTensor | None,
    ) -> Any:
        """Run an operator at once."""
        if not rule.launches:
            decomposition = torch._decomp.decomposition_table.get(rule.func)
            if decomposition is None:
                raise UnknownOperator(f"the emulator has no rule for {rule.func}: it has no CPU kernel")
            with self:
                return decomposition(*args, **kwargs)
        if rule.random:
            out = GENERATORS.draw(rule.func, raws, raw_kwargs)
        else:
            try:
                out = rule.func(*raws, **raw_kwargs)
            except RuntimeError as error:
                if "not resizable" not in str(error):
                    raise
                out = special.resized(rule, args, kwargs, raws, raw_kwargs)
        if rule.functional:
            result = _adopt_all(out, first)
        else:
            for tensor in rule.written(args, kwargs):
                raw = tensor._raw
                if raw.shape != tensor.shape or rule.reshapes or raw.storage_offset() != tensor.storage_offset():
                    special.follow(tensor)
            extra = None
            if rule.extra_results:
                listed = out if isinstance(out, (list, tuple)) else [out]
                extra = [
                    None if alias else _adopt_all(item, None) for alias, item in zip(rule.aliased, listed, strict=True)
                ]
            result = rule.returned(args, kwargs, extra)
        if DEVICE.stream is not DEVICE.default or ORDER.writes:
            ORDER.written(tensor._handle.block for tensor in rule.written(args, kwargs))
        if DEVICE.observer is not None:
            DEVICE.observer(rule, rule.written(args, kwargs), result)
        return result

    def enter(self, rule: Rule, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run the Python body of a user's operator with the modes on, on the wrapped tensors."""
        key = "CPU" if rule.body == "CPU" else "CUDA"
        # Calling the overload would pass through the function mode again and lose the key. The kernel is not kept: a
        # library may be destroyed and defined again.
        kernel = torch.library.get_kernel(rule.func, key)
        with self.reentered():
            return kernel.call_boxed(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)), *args, **kwargs)

    def reentered(self) -> Any:
        """Both modes on again: torch takes a mode off while its handler runs."""
        from graphcheck.backend.emulator.surface import modes

        return modes()


def _unwrap_all(items: Any) -> tuple[list[Any], DeviceTensor | None, bool]:
    raws: list[Any] = []
    first: DeviceTensor | None = None
    host = False
    for item in items:
        if type(item) is DeviceTensor:
            raws.append(item._raw)
            if first is None:
                first = item
        else:
            raws.append(item)
            if isinstance(item, torch.Tensor) and item.dim():
                host = True
    return raws, first, host


def _wrap_views(out: Any, first: DeviceTensor | None) -> Any:
    if first is None:
        return out
    handle = first._handle
    if isinstance(out, torch.Tensor):
        return wrap(out.detach() if out is first._raw else out, handle)
    return type(out)(wrap(item, handle) for item in out)


def _adopt_all(out: Any, first: DeviceTensor | None) -> Any:
    if isinstance(out, torch.Tensor):
        if first is not None and out is first._raw:
            return wrap(out.detach(), first._handle)
        return adopt(out)
    if isinstance(out, (list, tuple)):
        return type(out)(_adopt_all(item, first) for item in out)
    return out
