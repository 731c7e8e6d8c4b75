"""The components of the loop on the Triton kernels: they declare what they write, and compile before the first capture.

On a machine with a GPU it runs there; elsewhere `test_operators_in_a_child` runs this module in Triton's interpreter.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("no GPU; test_operators_in_a_child runs this in Triton's interpreter", allow_module_level=True)
pytest.importorskip("triton", reason="the kernels need triton, which is not installed")

from eagle3.component import COMPONENTS  # noqa: E402 - after the check
from graphcheck.strategies import sample  # noqa: E402
from graphcheck.watch import reachable  # noqa: E402
from msa.component.attention import WORKSPACE  # noqa: E402

torch.set_num_threads(1)
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
NAMES = sorted(set(COMPONENTS) - {"accept"})
KERNELS = ("eagle3_triton::", "msa_triton::")


class Watch(TorchDispatchMode):
    """Notes storages that operators write, and the variants of Triton operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.written: set[int] = set()
        self.variants: set[tuple[Any, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for index, argument in enumerate(func._schema.arguments):
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            if isinstance(value, torch.Tensor) and argument.alias_info is not None and argument.alias_info.is_write:
                self.written.add(value.untyped_storage().data_ptr())
        name = func._schema.name
        if name.startswith(KERNELS):
            given = (*args, *kwargs.items())
            self.variants.add((name, *(_said(value) for value in given)))
        return func(*args, **kwargs)


def two_drafts(name: str, kernels: str) -> Any:
    """The component with one variant, of two drafts."""
    kind = type(name, (COMPONENTS[name],), {"DRAFT_LENS": {"l2": 2}, "kernels": kernels})
    return kind()


def workspace(component: Any) -> set[str]:
    """The buffers that only Triton's attention has."""
    return {f"{prefix}_{part}_l2" for prefix in component.prefixes for part in WORKSPACE}


def _said(value: Any) -> Any:
    return (value.dtype, tuple(value.shape)) if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("name", NAMES)
def test_what_a_step_writes_is_declared_and_compiled_before_a_capture(name: str) -> None:
    """No warm-up. Expected: no undeclared write to a tensor of the component's; no kernel variant that is new."""
    component = two_drafts(name, "triton")
    with Watch() as before:
        buffers = component.allocate(DEVICE)
    assert before.variants
    assert workspace(component) <= set(component.scratch) <= set(buffers.__dict__)
    component.stage(buffers, sample(component, lambda drawn: drawn.size == 2))
    with Watch() as during:
        outputs = component.run(buffers)
    assert during.variants <= before.variants
    declared = [*outputs.values(), *(buffers[held] for held in (*component.mutates, *component.scratch))]
    stray = during.written - {tensor.untyped_storage().data_ptr() for tensor in declared}
    named = {**dict(reachable.tensors(component)), **dict(buffers.items())}
    assert [held for held, tensor in named.items() if tensor.untyped_storage().data_ptr() in stray] == []


@pytest.mark.parametrize("name", NAMES)
def test_portable_kernels_need_no_workspace(name: str) -> None:
    component = two_drafts(name, "portable")
    held = set(component.allocate(DEVICE).__dict__)
    assert set(component.scratch) <= held and not workspace(component) & held
