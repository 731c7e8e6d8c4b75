"""GC9xx: collectives and the end of the process, and what a contract says."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from graphcheck.lint import operators
from graphcheck.lint.log import Call, Log, Store
from graphcheck.lint.package import ModuleInfo
from graphcheck.lint.rules.problem import Problem, problem, quoted


def teardown(log: Log) -> Iterator[Problem]:
    """GC903: the process group is destroyed while a module-level graph still refers to it."""
    module = log.module
    graphs = [
        name
        for name, value in module.globals.items()
        if isinstance(value, ast.Call) and module.dotted(value.func) in operators.GRAPHS
    ]
    if not graphs or module.source.tree is None:
        return
    reset = {
        node.func.value.id
        for node in ast.walk(module.source.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "reset"
        and isinstance(node.func.value, ast.Name)
    }
    left = [name for name in graphs if name not in reset]
    for node in ast.walk(module.source.tree):
        if (
            left
            and isinstance(node, ast.Call)
            and module.dotted(node.func) == "torch.distributed.destroy_process_group"
        ):
            yield Problem(
                "GC903",
                node,
                module,
                None,
                f"the process group is destroyed while graph {left[0]} lives on in a global: teardown waits for it and hangs",
                f"{left[0]}.reset() before destroy_process_group()",
            )


def never_awaited(log: Log) -> Iterator[Problem]:
    """GC905: an asynchronous collective without its wait in the same region."""
    started: dict[int, Call] = {}
    names: dict[str, int] = {}
    for event in log.events:
        if not event.place.captured:
            continue
        if isinstance(event, Call) and event.result.symbol == "torch.distributed.Work" and event.method != "wait":
            started[id(event.node)] = event
        elif isinstance(event, Store) and isinstance(event.node, ast.Assign) and id(event.node.value) in started:
            names[event.path] = id(event.node.value)
        elif isinstance(event, Call) and event.method == "wait":
            waited = names.get(event.receiver.path)
            if waited is not None:
                started.pop(waited, None)
            elif event.receiver.symbol == "torch.distributed.Work" or not event.receiver.path:
                started.clear()
    for call in started.values():
        yield problem(
            "GC905",
            call,
            f"{quoted(call.node)} is started in the region and never waited for there: replays race with it",
            "work.wait() inside the same region",
        )


def contracts(module: ModuleInfo, decorators: tuple[str, ...]) -> Iterator[Problem]:
    """GC992 and GC993: a contract that names an unknown argument, or allows without a reason."""
    for function in module.functions_inside() if "capture_safe" in module.source.text else ():
        for name, node in function.decorator_names():
            if name not in decorators or not isinstance(node, ast.Call):
                continue
            arguments = function.node.args
            known = {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
            known |= {a.arg for a in (arguments.vararg, arguments.kwarg) if a is not None}
            for keyword in node.keywords:
                yield from _contract(keyword, known, function.qualname, module)


def _contract(keyword: ast.keyword, known: set[str], qualname: str, module: ModuleInfo) -> Iterator[Problem]:
    value = keyword.value
    keys = value.keys if isinstance(value, ast.Dict) else value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
    if keyword.arg == "allow" and isinstance(value, ast.Dict):
        for key, reason in zip(value.keys, value.values, strict=True):
            empty = isinstance(reason, ast.Constant) and not str(reason.value or "").strip()
            if empty and key is not None:
                yield Problem(
                    "GC992",
                    key,
                    module,
                    None,
                    f"{qualname} allows {quoted(key)} without a reason",
                    "say why it is harmless here",
                )
        return
    for part in keys:
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value not in known:
            yield Problem(
                "GC993",
                part,
                module,
                None,
                f"the contract of {qualname} names {part.value!r} as {keyword.arg}, which is none of its arguments",
                f"use one of {', '.join(sorted(known)) or 'no names at all'}",
            )


RULES = {teardown: ("GC903",), never_awaited: ("GC905",)}
