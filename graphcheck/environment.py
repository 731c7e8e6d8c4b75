"""What this machine holds: versions, devices and the checks that are live on it; probed here and nowhere else."""

from __future__ import annotations

import importlib.util
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("torch", "numpy", "hypothesis", "triton", "cupy-cuda13x", "cupy-cuda12x", "cuda-bindings", "pytest")
EXTRAS = {"cuda": ("cuda-bindings", "cupy-cuda13x", "triton"), "ray": ("ray",)}
_CHECKS = {
    "emulator": (
        "lockstep",
        "capture refusals",
        "streams",
        "allocation",
        "address ledger",
        "differential record",
        "guard bands",
        "undeclared writes",
    ),
    "cuda": (
        "lockstep",
        "capture refusals",
        "streams",
        "allocation",
        "address ledger",
        "differential record",
        "guard bands",
        "undeclared writes",
        "compilation",
        "foreign allocators",
    ),
}


def versions() -> dict[str, str]:
    """Versions of the packages that matter, by distribution name; absent ones are left out."""
    return {name: version(name) for name in PACKAGES if _is_installed(name)}


def lacking() -> dict[str, list[str]]:
    """By name of an extra: the distributions of it that are not installed; complete extras are left out."""
    lacks = {extra: [name for name in names if not _is_installed(name)] for extra, names in EXTRAS.items()}
    return {extra: names for extra, names in lacks.items() if names}


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def active_checks(backend: str) -> list[str]:
    """The checks that are live on ``backend``, here."""
    checks = list(_CHECKS[backend])
    if backend == "cuda" and importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.bindings"):
        checks += ["graph inspection", "memory nodes"]
    return checks


def environment(backend: str) -> dict[str, Any]:
    """Versions, device, threads and active checks, for a report.

    Args:
        backend: ``"cuda"`` or ``"emulator"``; the device is asked for its name on ``cuda`` only.
    """
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": versions(),
        "backend": backend,
        "device": "emulated cuda:0 on the CPU",
        "threads": 1,
        "active": active_checks(backend),
    }
    if backend == "cuda":
        import torch

        found["device"] = torch.cuda.get_device_name()
        found["cuda"] = torch.version.cuda
    return found


def name_clash() -> str | None:
    """Words on the unrelated PyPI project called ``graphcheck``, if it is installed; else None."""
    try:
        found = version("graphcheck")
    except PackageNotFoundError:
        return None
    return (
        f"the unrelated distribution graphcheck {found} is installed and may shadow this one; pip uninstall graphcheck"
    )


def python_is_supported() -> bool:
    """Whether this Python is one that the package supports."""
    return sys.version_info >= (3, 10)
