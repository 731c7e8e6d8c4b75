"""GC8xx: random numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from graphcheck.lint import operators
from graphcheck.lint.log import Log, Mode
from graphcheck.lint.rules.problem import Problem, problem, quoted
from graphcheck.lint.values import Kind


def baked_seed(log: Log) -> Iterator[Problem]:
    """GC801."""
    registered = any(
        call.method == "register_generator_state" for call in log.calls(Mode.HOST, Mode.PREPARE, Mode.REGION)
    )
    for call in log.calls():
        if not isinstance(call.node, ast.Call):
            continue
        if call.name.startswith(("random.", "numpy.random.")) and call.method not in ("Generator", "Random"):
            yield problem(
                "GC801",
                call,
                f"{quoted(call.node)} is drawn on the host once, at capture: every replay uses the same number",
                "draw on the device (torch.rand with a registered generator)",
            )
            continue
        generator = call.keywords.get("generator")
        made_by = generator.symbol.rpartition(".")[2] if generator is not None else ""
        if generator is not None and made_by == "Generator" and not registered:
            yield problem(
                "GC801",
                call,
                f"{quoted(call.node)} draws from {generator.path or 'a generator'} that the graph does not know: replays repeat its numbers",
                "graph.register_generator_state(generator) before the capture",
            )
            continue
        launches = call.name == "[launch]" or any(value.on_device for value in call.inputs)
        for keyword in call.node.keywords:
            value = call.keywords.get(keyword.arg or "")
            word = (keyword.arg or "").lower()
            if value is None or not launches or call.known or not any(part in word for part in operators.SEED_WORDS):
                continue
            converted = isinstance(keyword.value, ast.Call) and quoted(keyword.value.func) == "int"
            if (value.kind in (Kind.CONSTANT, Kind.VARYING) or converted) and value.constant is not False:
                if isinstance(keyword.value, ast.Constant) and keyword.value.value is None:
                    continue
                yield problem(
                    "GC801",
                    call,
                    f"{keyword.arg}={quoted(keyword.value)} is a host number, so every replay draws the same random numbers",
                    "pass seed and offset in device tensors that advance between replays",
                )


def random_state(log: Log) -> Iterator[Problem]:
    """GC802."""
    for call in log.calls():
        by_method = call.name in (".manual_seed", ".set_state", ".get_state") and call.receiver.symbol.endswith(
            "Generator"
        )
        if call.name in operators.RANDOM_STATE or by_method:
            yield problem(
                "GC802",
                call,
                f"{quoted(call.node)} touches the generator's host state while capturing, which is refused",
                "seed before the capture; use graphsafe_get_state and graphsafe_set_state inside",
            )
        elif call.name == "torch.utils.checkpoint.checkpoint":
            kept = call.keywords.get("preserve_rng_state")
            if kept is None or kept.constant is not False:
                yield problem(
                    "GC802",
                    call,
                    f"{quoted(call.node)} saves and restores the RNG state on the host while capturing",
                    "pass preserve_rng_state=False",
                )


RULES = {baked_seed: ("GC801",), random_state: ("GC802",)}
