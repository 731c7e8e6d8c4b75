"""Rules: what each operator does, worked out once from its schema."""

from __future__ import annotations

from typing import Any

import torch

from graphcheck.backend.emulator.tensor import DeviceTensor

BUILTIN = frozenset({"aten", "prims", "prim", "quantized", "_quantized", "mkldnn", "mkl", "profiler", "inductor"})
# Share memory with their argument though the schema does not say so.
_SECRET_VIEWS = frozenset({"_unsafe_view", "unsafe_split", "unsafe_split_with_sizes"})
_HOST_ARGUMENTS = frozenset(
    {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put", "tensor_split"}
)
_DYNAMIC = frozenset(
    {
        "nonzero",
        "nonzero_numpy",
        "argwhere",
        "masked_select",
        "_unique",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
        "unique_dim_consecutive",
        "bincount",
    }
)
_COMPARED = frozenset({"equal", "allclose", "is_nonzero", "_is_all_true", "_is_any_true"})


class Rule:
    """What an operator does with its arguments.

    Attributes:
        names: argument names in order.
        written_names: arguments that it writes.
        functional: it writes none of them and its results are new memory.
        view: its results share memory with the first tensor argument.
        reshapes: it changes the geometry of its first argument in place.
        factory: it takes a ``device`` argument.
        dynamic: the shape of its result depends on data.
        compared: it answers a Python bool.
        random: it draws from a generator.
        composite: it is made of other operators, which are to be seen instead.
        body: the dispatch key of its Python body, where it has one.
        launches: it has a kernel that runs on CPU tensors.
        aliased: for each result, the name of the argument that comes back, or None.
    """

    __slots__ = (
        "aliased",
        "body",
        "compared",
        "composite",
        "dynamic",
        "extra_results",
        "factory",
        "func",
        "functional",
        "host_arguments",
        "launches",
        "names",
        "packet",
        "random",
        "reshapes",
        "special",
        "tuple_result",
        "view",
        "written_names",
    )

    def __init__(self, func: Any) -> None:
        schema = func._schema
        self.func = func
        self.packet = func.overloadpacket.__name__
        self.names = tuple(argument.name for argument in schema.arguments)
        self.written_names = frozenset(
            argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write
        )
        tags = set(func.tags)
        builtin = func.namespace in BUILTIN
        aliasing = any(result.alias_info is not None for result in schema.returns)
        self.view = not self.written_names and (aliasing or (builtin and self.packet in _SECRET_VIEWS))
        self.functional = not self.written_names and not self.view
        self.reshapes = torch.Tag.inplace_view in tags
        self.factory = builtin and "device" in self.names
        self.dynamic = self.packet in _DYNAMIC if builtin else torch.Tag.dynamic_output_shape in tags
        self.compared = builtin and self.packet in _COMPARED
        self.random = torch.Tag.nondeterministic_seeded in tags
        self.host_arguments = builtin and self.packet in _HOST_ARGUMENTS
        name = func.name()
        self.composite = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
        self.body = None if builtin else _python_body(func)
        self.launches = torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CPU")
        by_alias = {
            tuple(argument.alias_info.before_set): argument.name
            for argument in schema.arguments
            if argument.alias_info and argument.alias_info.is_write
        }
        self.aliased = [
            by_alias.get(tuple(result.alias_info.before_set)) if result.alias_info is not None else None
            for result in schema.returns
        ]
        self.extra_results = bool(self.written_names) and any(alias is None for alias in self.aliased)
        self.tuple_result = len(schema.returns) > 1
        self.special: Any = None

    def argument(self, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """The value of an argument by name, None where it was left out."""
        if name in kwargs:
            return kwargs[name]
        position = self.names.index(name)
        return args[position] if position < len(args) else None

    def returned(self, args: Any, kwargs: dict[str, Any], outs: Any = None) -> Any:
        """What an operator that writes its arguments gives back: those arguments themselves."""
        if not self.aliased:
            return None
        values = [
            self.argument(alias, args, kwargs) if alias is not None else (outs[number] if outs else None)
            for number, alias in enumerate(self.aliased)
        ]
        return tuple(values) if self.tuple_result else values[0]

    def written(self, args: Any, kwargs: dict[str, Any]) -> list[DeviceTensor]:
        """The device tensors among the arguments that it writes."""
        found: list[DeviceTensor] = []
        for name in self.written_names:
            value = self.argument(name, args, kwargs)
            for item in value if isinstance(value, (list, tuple)) else (value,):
                if type(item) is DeviceTensor:
                    found.append(item)
        return found


def _python_body(func: Any) -> Any:
    """The dispatch key under which a Python function implements a user's operator."""
    registered: set[str] = torch.library._impls
    name = func.name().split("::")[-1]
    for key in ("CUDA", "CompositeExplicitAutograd", "CompositeImplicitAutograd", "CPU"):
        if f"{func.namespace}/{name}/{key}" in registered:
            return key
    return None
