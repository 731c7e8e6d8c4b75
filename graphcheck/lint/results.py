"""What calls of torch, of builtins and of known objects return, by their names."""

from __future__ import annotations

import ast
from dataclasses import replace

from graphcheck.lint import operators
from graphcheck.lint.expressions import Expressions
from graphcheck.lint.log import Mode
from graphcheck.lint.values import CONSTANT, DEVICE, UNKNOWN, Kind, Value, join_all, tainted

_MUTATORS = frozenset({"append", "extend", "insert", "add", "update", "setdefault", "appendleft", "put", "put_nowait"})


class Results(Expressions):
    """Answers calls that are not entered; calls build on it."""

    def torch_function(self, name: str, arguments: list[Value], inputs: list[Value]) -> Value:
        last = name.rpartition(".")[2]
        if name in ("torch.nn.Parameter", "torch.nn.parameter.Parameter", "torch.nn.Buffer") and arguments:
            return replace(arguments[0], made="Parameter")
        flat = [
            member
            for value in inputs
            for member in (value, *(value.items or ()), *((value.element,) if value.element else ()))
        ]
        kinds = {value.kind for value in flat}
        kind = Kind.DEVICE if Kind.DEVICE in kinds else Kind.HOST if Kind.HOST in kinds else None
        if kind is None:
            return self.opaque(inputs)
        if last in operators.READS_INSIDE:
            return Value(Kind.READ)
        if last in operators.VIEWS and arguments:
            return self._view(arguments[0], last)
        boolean = last in operators.COMPARES or (
            last.startswith(("logical_", "bitwise_")) and all(value.boolean for value in arguments if value.is_tensor)
        )
        return Value(kind, boolean=boolean, fresh=self.captured, made=last)

    def factory(self, name: str, node: ast.Call, arguments: list[Value], keywords: dict[str, Value]) -> Value:
        """A tensor from nothing or from host data."""
        last = name.rpartition(".")[2]
        source = arguments[0] if arguments else UNKNOWN
        kind = Kind.HOST
        if "device" in keywords:
            kind = Kind.HOST if keywords["device"].constant == "cpu" else Kind.DEVICE
        elif last.endswith("_like") or (name in operators.CREATES_FROM_DATA and source.is_tensor):
            kind = source.kind if source.is_tensor else Kind.UNKNOWN
        elif name.startswith("cupy.") or "torch.device" in self.contexts:
            kind = Kind.DEVICE
        elif "pin_memory" not in keywords and (not self.captured or self.package.moves_default_device):
            # Outside the region a default device may be set somewhere else.
            kind = Kind.UNKNOWN
        filled = (
            arguments[1].constant
            if last == "full" and len(arguments) > 1
            else keywords.get("fill_value", UNKNOWN).constant
        )
        return Value(
            kind,
            fresh=self.captured,
            made=last,
            sentinel=isinstance(filled, int) and not isinstance(filled, bool) and filled < 0,
            pinned="pin_memory" in keywords and keywords["pin_memory"].constant is not False,
        )

    def builtin(self, name: str, arguments: list[Value], inputs: list[Value]) -> Value:
        first = arguments[0] if arguments else UNKNOWN
        if name in ("int", "float", "bool", "complex"):
            if first.on_device:
                return Value(Kind.READ)
            if first.kind is Kind.HOST:
                return Value(Kind.VARYING, sources=frozenset({first.path or "a host tensor"}))
            return (
                replace(first, path="", constant=None, symbol="", bound=None)
                if first.kind is not Kind.UNKNOWN
                else UNKNOWN
            )
        if name in ("len", "isinstance", "hasattr", "callable", "id", "hash", "type", "issubclass"):
            return Value(Kind.VARYING, sources=first.sources) if name == "len" and first.varies else CONSTANT
        if name in ("max", "min", "sum", "abs", "round", "any", "all", "divmod", "pow"):
            if any(value.on_device for value in inputs):
                return Value(Kind.READ) if name in ("any", "all") else replace(DEVICE, fresh=self.captured)
            members = [
                member for value in inputs for member in ([value.element] if value.element is not None else [value])
            ]
            return tainted(members) or (CONSTANT if all(v.kind is Kind.CONSTANT for v in members) else UNKNOWN)
        if name in ("list", "tuple", "sorted", "set", "reversed", "iter", "frozenset"):
            made = "list" if name in ("list", "sorted") else ""
            if first.kind is Kind.CONTAINER:
                return replace(first, path="", made=made)
            found = Value(Kind.CONTAINER, element=self.iterated(first), made=made)
            return found if first.kind is not Kind.UNKNOWN else UNKNOWN
        if name == "range":
            return tainted(arguments) or Value(Kind.CONTAINER, element=CONSTANT)
        if name in ("enumerate", "zip"):
            each = tuple(self.iterated(value) for value in arguments)
            pair = (CONSTANT, *each) if name == "enumerate" else each
            return Value(Kind.CONTAINER, element=Value(Kind.CONTAINER, items=pair, element=join_all(pair)))
        if name == "dict":
            known = [value.element or value for value in inputs if value.kind is not Kind.UNKNOWN]
            return Value(Kind.CONTAINER, element=join_all(known))
        if name == "getattr" and len(arguments) > 1 and isinstance(arguments[1].constant, str):
            return self.attribute(first, arguments[1].constant, ast.Constant(value=None))
        if name in ("str", "repr", "format"):
            return CONSTANT if first.kind is not Kind.VARYING else first
        return self.opaque(inputs)

    def _view(self, base: Value, name: str) -> Value:
        partial = base.partial or name in operators.PARTIAL
        viewed = replace(base, partial=partial)
        return Value(Kind.CONTAINER, element=viewed) if name in operators.SEVERAL else viewed

    def method(
        self, base: Value, name: str, node: ast.Call, arguments: list[Value], keywords: dict[str, Value]
    ) -> Value:
        """What a tensor's method returns."""
        if base.kind is Kind.UNKNOWN:
            base = replace(base, kind=Kind.DEVICE)
        if name in operators.HOST_METHODS:
            return CONSTANT
        if name in ("item", "tolist"):
            if base.on_device:
                return Value(Kind.READ)
            return Value(Kind.VARYING, sources=frozenset({base.path or "a host tensor"}))
        if name in ("cpu", "numpy"):
            return replace(base, kind=Kind.HOST, path="", fresh=self.captured, made=name)
        if name in ("to", "cuda", "type"):
            return self._moved(base, name, node, arguments, keywords)
        if name == "pin_memory":
            return replace(base, kind=Kind.HOST, pinned=True, path="")
        if name in operators.VIEWS:
            return self._view(base, name)
        if operators.is_in_place(name):
            self._written(base, name, arguments)
            return base
        if name in operators.NEW:
            filled = arguments[1].constant if name == "new_full" and len(arguments) > 1 else None
            return Value(base.kind, fresh=self.captured, made=name, sentinel=isinstance(filled, int) and filled < 0)
        if name in ("reshape", "flatten", "contiguous", "clone", "long", "int", "float", "half", "bool"):
            return replace(
                base,
                path="",
                fresh=self.captured,
                made=name,
                output=False,
                boolean=(base.boolean and name not in ("long", "int", "float", "half")) or name == "bool",
            )
        if name == "masked_fill":
            filled = arguments[1].constant if len(arguments) > 1 else None
            sentinel = isinstance(filled, (int, float)) and filled < 0
            return Value(base.kind, fresh=self.captured, made=name, sentinel=sentinel)
        kind = Kind.DEVICE if base.on_device or any(value.on_device for value in arguments) else Kind.HOST
        boolean = name in operators.COMPARES or (name in ("any", "all")) or (base.boolean and name == "clone")
        sentinel = base.sentinel and name in ("div", "floor_divide", "remainder")
        return Value(kind, boolean=boolean, fresh=self.captured, made=name, sentinel=sentinel)

    def _written(self, base: Value, name: str, arguments: list[Value]) -> None:
        """Remember whether padding of a buffer is negative."""
        if self.mode is Mode.REGION or not base.path:
            return
        first = arguments[0] if arguments else UNKNOWN
        negative = isinstance(first.constant, (int, float)) and first.constant < 0
        if (name == "copy_" and first.sentinel) or (name == "fill_" and negative):
            self.sentinels.add(base.path)
        elif name in ("fill_", "zero_") or (name == "copy_" and not base.partial):
            self.sentinels.discard(base.path)

    def _moved(
        self, base: Value, name: str, node: ast.Call, arguments: list[Value], keywords: dict[str, Value]
    ) -> Value:
        """``to`` and ``cuda``: where a tensor ends up."""
        targets = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "device")]
        kind = Kind.DEVICE if name == "cuda" else base.kind
        for target in targets:
            text = ast.unparse(target)
            if text.strip("'\"") == "cpu" or text == "torch.device('cpu')":
                kind = Kind.HOST
            elif "device" in text or "cuda" in text:
                kind = Kind.DEVICE
        first = arguments[0] if arguments else None
        if first is not None and first.is_tensor:
            kind = first.kind
        if kind is base.kind:
            return replace(base, path="", fresh=self.captured or base.fresh, made=name)
        return Value(kind, boolean=base.boolean, fresh=self.captured, made=name, sentinel=base.sentinel)

    def object_method(self, receiver: Value, name: str, arguments: list[Value]) -> Value:
        """What a method of a container, a stream, the case or another known thing returns."""
        if receiver.kind is Kind.CONTAINER:
            if name in ("values", "copy", "keys"):
                return receiver
            if name == "items":
                pair = (CONSTANT, receiver.element or UNKNOWN)
                return Value(
                    Kind.CONTAINER, path=receiver.path, element=Value(Kind.CONTAINER, items=pair, element=pair[1])
                )
            if name in ("get", "pop", "setdefault", "popleft"):
                found = receiver.element or UNKNOWN
                return replace(found, path=f"{receiver.path}[]") if receiver.path else found
            if name in _MUTATORS and receiver.path and arguments:
                held = self.heap.get(receiver.path, receiver)
                self.heap[receiver.path] = replace(held, items=None, element=join_all([arguments[-1]]))
            return UNKNOWN
        if receiver.kind is Kind.BUFFERS and name == "items":
            pair = (CONSTANT, DEVICE)
            return Value(Kind.CONTAINER, element=Value(Kind.CONTAINER, items=pair, element=DEVICE))
        if receiver.kind is Kind.VARYING:
            if name in ("to", "cuda"):
                return Value(Kind.DEVICE, made=name)
            return Value(Kind.VARYING, sources=receiver.sources)
        if receiver.kind is Kind.STREAM and name == "record_event":
            return Value(Kind.EVENT)
        if receiver.kind is Kind.CONSTANT:
            return tainted(arguments) or CONSTANT
        return UNKNOWN

    def buffers(self, keywords: dict[str, Value]) -> Value:
        """``Buffers(...)``: remembers what each buffer was made from."""
        if self.mode is Mode.PREPARE:
            for name, value in keywords.items():
                if name != "**":
                    known = value if value.is_tensor else DEVICE
                    self.log.buffers[name] = replace(known, path=f"buffers.{name}", fresh=False)
        return Value(Kind.BUFFERS, path="buffers")

    def opaque(self, inputs: list[Value], receiver: Value = UNKNOWN) -> Value:
        """What a call into code that cannot be seen returns."""
        if any(value.holds_device_tensor() for value in inputs):
            return UNKNOWN
        return tainted([receiver, *inputs]) or UNKNOWN
