"""``list`` and ``doctor``: what is registered, and what this machine can check."""

from __future__ import annotations

import importlib.util

import click

from graphcheck.cli.present import console
from graphcheck.environment import active_checks, lacking, name_clash, python_is_supported, versions


@click.command("list")
def list_components() -> int:
    """Registered components."""
    from graphcheck.registry import registered

    out = console()
    for name, maker in registered().items():
        words = (getattr(maker, "__doc__", None) or "").strip().splitlines()
        out.print(f"{name:18} {words[0] if words else ''}".rstrip())
    return 0


@click.command()
def doctor() -> int:
    """What this machine can check."""
    out = console()
    found = versions()
    out.print("packages: " + (", ".join(f"{name} {number}" for name, number in found.items()) or "none"))
    if not python_is_supported():
        out.print("python: older than 3.10, which graphcheck does not support")
    clash = name_clash()
    out.print(f"name clash: {clash}" if clash else "name clash: none")
    for extra, names in lacking().items():
        out.print(f"extra {extra}: lacks {', '.join(names)}; pip install 'torch-graphcheck[{extra}]'")
    if importlib.util.find_spec("torch") is None:
        out.print("torch: not installed; only lint and explain work. Install torch 2.9 or later")
        return 3
    import torch

    out.print(f"emulator: {', '.join(active_checks('emulator'))}")
    if torch.cuda.is_available():
        out.print(f"cuda: {torch.cuda.get_device_name()}: {', '.join(active_checks('cuda'))}")
        if "cuda-bindings" not in found:
            out.print("cuda: no graph inspection without cuda-bindings")
    else:
        out.print(f"cuda: not live here (torch {torch.__version__} sees no GPU); --backend cuda exits 3")
    return 0
