"""Code that asks whether a stream is capturing: one side is the region's, the other only eager execution's."""

from __future__ import annotations

import ast

from graphcheck.lint import log as events
from graphcheck.lint import operators
from graphcheck.lint.calls import CAPTURE_STATUS, Calls
from graphcheck.lint.frames import DEEPEST, Refused
from graphcheck.lint.package import FunctionInfo
from graphcheck.lint.syntax import documents, names_loaded
from graphcheck.lint.values import UNKNOWN, Kind, Value


class Division(Calls):
    """Reads tests of the capture status; statements build on it."""

    def polarity(self, test: ast.expr) -> bool | None:
        """True where the test holds only while capturing, False where only when not, None where it does not say."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.polarity(test.operand)
            return None if inner is None else not inner
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            known = [found for found in map(self.polarity, test.values) if found is not None]
            return known[0] if known else None
        if isinstance(test, (ast.Call, ast.Name, ast.Attribute)):
            self.silent += 1
            try:
                if self.value(test).symbol == CAPTURE_STATUS:
                    return True
                callee = self.value(test.func) if isinstance(test, ast.Call) else UNKNOWN
            finally:
                self.silent -= 1
            return self._answered(callee)
        return None

    def _answered(self, callee: Value) -> bool | None:
        """The polarity of a call of a function that only returns an expression."""
        function = callee.definition
        if not isinstance(function, FunctionInfo) or id(function) in self.stack or len(self.stack) >= DEEPEST:
            return None
        *before, last = function.node.body
        if not isinstance(last, ast.Return) or last.value is None or not all(map(documents, before)):
            return None
        saved, self.frame = self.frame, self.activation(function, [], {}, callee.bound)
        self.stack = [*self.stack, id(function)]
        try:
            return self.polarity(last.value)
        finally:
            self.frame, self.stack = saved, self.stack[:-1]

    def _divided(self, node: ast.If, polarity: bool, rest: list[ast.stmt]) -> bool:
        """A test of the capture status: one side is captured, the other is not."""
        captured, skipped = (node.body, node.orelse) if polarity else (node.orelse, node.body)
        before = dict(self.frame.env)
        start = len(self.log.events)
        skipped_ended = self.body(skipped)
        ends_by_return = bool(skipped) and isinstance(skipped[-1], ast.Return)
        skipped_effects = self._effects(self.log.events[start:], before)
        del self.log.events[start:]
        self.frame.env = dict(before)
        if ends_by_return:
            self.frame.returns.pop()
        start = len(self.log.events)
        try:
            ended = self.body(captured)
        except Refused:
            return True
        captured_effects = self._effects(self.log.events[start:], before)
        if ended and not skipped_ended:
            if not (captured and isinstance(captured[-1], ast.Return)):
                return True
            start, env = len(self.log.events), dict(self.frame.env)
            self.body(rest)
            skipped_effects += self._effects(self.log.events[start:], env, returns=False)
            del self.log.events[start:]
            self.frame.env = env
        live = names_loaded(self.frame.function)
        skipped_effects = tuple(name for name in skipped_effects if "." in name or name in live or name == "a return")
        both = bool(set(captured_effects) & set(skipped_effects))
        if skipped_effects or (captured_effects and not skipped):
            self.emit(events.Divided(node, self.place(), tuple(captured_effects), tuple(skipped_effects), both))
        return ended

    def _effects(self, happened: list[events.Event], env: dict[str, Value], returns: bool = True) -> tuple[str, ...]:
        """Names that the events give a device value, write in place or return."""
        found: list[str] = []
        for event in happened:
            if isinstance(event, events.Store) and event.value.holds_device_tensor() and event.path:
                if event.place.calls == self.calls:
                    found.append(event.path)
            elif isinstance(event, events.Call) and operators.is_in_place(event.method):
                if event.receiver.on_device and event.receiver.path:
                    found.append(event.receiver.path)
            elif (
                isinstance(event, events.Return)
                and returns
                and event.depth == self.depth
                and (event.value.on_device or event.value.kind is Kind.UNKNOWN)
            ):
                found.append("a return")
        return tuple(dict.fromkeys(found))
