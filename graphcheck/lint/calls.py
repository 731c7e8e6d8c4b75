"""Abstract evaluation of calls: torch's by name, the linted tree's own by entering them."""

from __future__ import annotations

import ast
from abc import abstractmethod
from dataclasses import replace

from graphcheck.lint import log as events
from graphcheck.lint import operators
from graphcheck.lint.frames import DEEPEST, Frame, Refused
from graphcheck.lint.package import ClassInfo, FunctionInfo
from graphcheck.lint.results import Results
from graphcheck.lint.values import CONSTANT, DEVICE, UNKNOWN, Kind, Value, join_all, tainted

CAPTURE_STATUS = "capture status"
SPREAD = "*"


class Calls(Results):
    """Evaluates calls."""

    def _call(self, node: ast.Call) -> Value:
        callee = self.value(node.func)
        arguments = [self.value(argument) for argument in node.args]
        for number, argument in enumerate(node.args):
            if isinstance(argument, ast.Starred):
                arguments[number] = replace(arguments[number], symbol=SPREAD)
        keywords = {keyword.arg or "**": self.value(keyword.value) for keyword in node.keywords}
        name, receiver = callee.symbol, callee.bound or UNKNOWN
        if isinstance(node.func, ast.Subscript) and callee.kind is not Kind.CONSTANT:
            name = "[launch]"
        known = callee.definition is not None
        # A call stands before what happens inside it.
        event = events.Call(node, self.place(), name, receiver, arguments, keywords, UNKNOWN, known)
        self.emit(event)
        event.result = self.outcome(node, callee, name, receiver, arguments, keywords)
        return event.result

    def outcome(
        self,
        node: ast.Call,
        callee: Value,
        name: str,
        receiver: Value,
        arguments: list[Value],
        keywords: dict[str, Value],
    ) -> Value:
        """What a call returns."""
        last = name.rpartition(".")[2]
        if last in operators.CAPTURING:
            return Value(Kind.CONSTANT, symbol=CAPTURE_STATUS)
        if last == "refuse_while_capturing":
            if self.captured:
                raise Refused
            return CONSTANT
        if name in ("graphcheck.Buffers", "graphcheck.component.Buffers"):
            return self.buffers(keywords)
        definition = callee.definition
        if isinstance(definition, FunctionInfo):
            return self.enter(definition, arguments, keywords, callee.bound, node)
        if isinstance(definition, ClassInfo):
            return self.construct(definition, arguments, keywords, node)
        if callee.kind is Kind.OBJECT:
            return self.invoke(callee, arguments, keywords, node)
        if callee.kind is Kind.SYMBOL and callee.bound is None:
            return self.function(name, node, arguments, keywords)
        if name.startswith(".") and (receiver.is_tensor or self._only_tensors(last, receiver)):
            return self.method(receiver, last, node, arguments, keywords)
        if name.startswith(".") and receiver.kind is not Kind.UNKNOWN:
            return self.object_method(receiver, last, arguments)
        return self.opaque([*arguments, *keywords.values()], receiver)

    def _only_tensors(self, method: str, receiver: Value) -> bool:
        return receiver.kind is Kind.UNKNOWN and (method in operators.TENSOR_METHODS or method == "pin_memory")

    def function(self, name: str, node: ast.Call, arguments: list[Value], keywords: dict[str, Value]) -> Value:
        """What a builtin or an imported function returns."""
        inputs = [*arguments, *keywords.values()]
        if name in operators.CURRENT_STREAM:
            return Value(Kind.STREAM, path="<current>")
        if name in operators.DEFAULT_STREAM:
            return Value(Kind.STREAM, path="<default>")
        if name in operators.STREAMS:
            return Value(Kind.STREAM)
        if name in operators.EVENTS:
            return Value(Kind.EVENT, constant="external" if "external" in keywords else None)
        if name in operators.GRAPHS:
            return Value(Kind.GRAPH)
        if name in operators.HOST_FUNCTIONS:
            return CONSTANT
        if name.endswith("cuda.make_graphed_callables") and not self.silent:
            return self.graphed(node, arguments)
        if name == "super":
            owner = self.frame.function.owner if self.frame.function is not None else None
            own = self.frame.self_value
            if owner is not None and own is not None and isinstance(own.definition, ClassInfo):
                return Value(Kind.SYMBOL, symbol="super", definition=own.definition, bound=Value(definition=owner))
            return UNKNOWN
        if name in operators.CREATES_FROM_DATA or name in operators.FACTORIES or name in operators.LIKE:
            return self.factory(name, node, arguments, keywords)
        if name.startswith("torch.optim.") or name.rpartition(".")[2] in ("GradScaler", "Generator"):
            capturable = any(keywords.get(word, UNKNOWN).constant is True for word in ("capturable", "fused"))
            return Value(Kind.OBJECT, symbol=name, constant="capturable" if capturable else None)
        if name.startswith("torch.distributed.") and keywords.get("async_op", UNKNOWN).constant is True:
            return Value(Kind.OBJECT, symbol="torch.distributed.Work")
        if name.startswith("torch.nn.") and name.split(".")[2][:1].isupper() and len(name.split(".")) == 3:
            return Value(Kind.OBJECT, symbol=name)
        if name.startswith(("torch.", "cupy.")):
            return self.torch_function(name, arguments, inputs)
        return self.builtin(name, arguments, inputs)

    def construct(self, owner: ClassInfo, arguments: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        """An instance of a class of the tree; its constructor is walked inside a region only."""
        inputs = tainted([*arguments, *keywords.values()])
        sources = inputs.sources if inputs is not None else frozenset()
        made = Value(Kind.OBJECT, symbol=owner.name, definition=owner, sources=sources, fresh=self.captured)
        if self.captured and not self.silent:
            method = owner.method("__init__")
            if method is not None:
                self.enter(method, arguments, keywords, made, node)
        return made

    def invoke(self, callee: Value, arguments: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        """Calling an instance: a module's ``forward``, or ``__call__``."""
        inputs = [*arguments, *keywords.values()]
        if isinstance(callee.definition, ClassInfo):
            for name in ("forward", "__call__"):
                method = callee.definition.method(name)
                if method is not None:
                    return self.enter(method, arguments, keywords, callee, node)
        if callee.symbol.startswith("torch.nn.") and any(value.on_device for value in inputs):
            return replace(DEVICE, fresh=self.captured, made="module")
        return self.opaque(inputs)

    def enter(
        self,
        function: FunctionInfo,
        arguments: list[Value],
        keywords: dict[str, Value],
        bound: Value | None,
        node: ast.AST,
    ) -> Value:
        """What a function of the linted tree returns, by walking it in place of the call."""
        inputs = [*arguments, *keywords.values()]
        decorators = {name for name, _ in function.decorator_names()}
        if len(self.stack) >= DEEPEST and self.captured and not self.silent and id(function) not in self.stack:
            self.log.cut = True
        if self.silent or len(self.stack) >= DEEPEST or id(function) in self.stack or "triton.jit" in decorators:
            return self.opaque(inputs, bound or UNKNOWN)
        key = (id(function), self.mode, bound, tuple(arguments), tuple(sorted(keywords)), tuple(keywords.values()))
        known = self.memo.get(key)
        if known is not None:
            return known
        frame = self.activation(function, arguments, keywords, bound)
        saved = (self.frame, self.calls, self.guards, self.loops)
        line = getattr(node, "lineno", 0)
        self.calls = (*self.calls, (function.qualname, str(self.frame.module.source.path), line))
        self.frame, self.stack = frame, [*self.stack, id(function)]
        try:
            self.body(function.node.body)
        finally:
            self.frame, self.calls, self.guards, self.loops = saved
            self.stack = self.stack[:-1]
        if any(name.rpartition(".")[2] == "contextmanager" for name in decorators):
            result = UNKNOWN
        else:
            result = join_all(frame.returns) if frame.returns else CONSTANT
        self.memo[key] = result
        return result

    def activation(
        self, function: FunctionInfo, arguments: list[Value], keywords: dict[str, Value], bound: Value | None
    ) -> Frame:
        """The frame of a call, with parameters bound to arguments."""
        _, parent = self.closures.get(id(function), (None, None))
        env = self.parameters(function, None)
        names = [argument.arg for argument in (*function.node.args.posonlyargs, *function.node.args.args)]
        given = list(arguments)
        if (
            bound is not None
            and function.owner is not None
            and "staticmethod" not in {n for n, _ in function.decorator_names()}
        ):
            given.insert(0, bound)
        spread = "**" in keywords or any(value.symbol == SPREAD for value in given)
        for name in env:
            env[name] = replace(env[name], path="")
        bound_names: set[str] = set()
        for name, value in zip(names, given, strict=False):
            if value.symbol == SPREAD:
                break
            env[name] = self.refined(value, env[name])
            bound_names.add(name)
        for name, value in keywords.items():
            if name in env:
                env[name] = self.refined(value, env[name])
                bound_names.add(name)
        if not spread:
            for name, default in _defaults(function.node.args):
                if name not in bound_names:
                    env[name] = self.shallow(default, Frame(function.module))
        frame = Frame(function.module, function, env, parent)
        if bound is not None and names and function.owner is not None:
            frame.self_value = bound
        elif parent is not None:
            frame.self_value = parent.self_value
        return frame

    def refined(self, given: Value, annotated: Value) -> Value:
        """An argument, or what its parameter's annotation says where the argument is unknown."""
        if given.kind is Kind.UNKNOWN and annotated.kind is not Kind.CONSTANT:
            return replace(annotated, path=given.path) if annotated.kind is not Kind.UNKNOWN else given
        return given

    @abstractmethod
    def body(self, statements: list[ast.stmt]) -> bool: ...

    @abstractmethod
    def graphed(self, node: ast.Call, arguments: list[Value]) -> Value: ...


def _defaults(arguments: ast.arguments) -> list[tuple[str, ast.expr]]:
    """Parameters with a default, with its expression."""
    positional = [*arguments.posonlyargs, *arguments.args]
    behind = positional[len(positional) - len(arguments.defaults) :]
    found = [(argument.arg, default) for argument, default in zip(behind, arguments.defaults, strict=True)]
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return found + [(argument.arg, default) for argument, default in named if default is not None]
