"""The address ledger on hardware: is every address that a graph holds still owned by the buffer it belonged to?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from graphcheck.backend.cuda.oplog import Touched
from graphcheck.finding import Finding, Location

_ADVICE = {
    "GC401": "copy into the buffer in place instead of binding a new tensor",
    "GC402": "keep every input with the graph for as long as it is replayed",
    "GC403": "copy the new contents into the existing storage, or capture again",
    "GC404": "size the buffer for the most that will ever be asked before the first capture",
    "GC411": "allocate it before the first capture and keep it, or drop all graphs of the pool together",
    "GC407": "keep the host buffer with the graph, or copy before capture",
}


@dataclass(frozen=True)
class _Name:
    """What a user's name held when the graph was captured."""

    tensor: int
    nbytes: int


class Ledger:
    """The external addresses of one graph and the names that held them at capture.

    Args:
        touched: by address, what the graph reads or writes and did not allocate itself.
    """

    def __init__(self, touched: Mapping[int, Touched]) -> None:
        self._touched = dict(touched)
        self._names: dict[int, dict[str, _Name]] = {}

    def add(self, address: int, nbytes: int, storage: StorageWeakRef, where: Location | None) -> None:
        """Also watch an allocation that a kernel argument revealed."""
        self._touched.setdefault(address, Touched(address, nbytes, storage, "device", where, reads=True))

    def name(self, names: Mapping[str, torch.Tensor]) -> None:
        """Remember which of the user's names owns each address."""
        for name, tensor in names.items():
            if tensor.numel() == 0:
                continue
            address = tensor.untyped_storage().data_ptr()
            if address in self._touched:
                held = self._names.setdefault(address, {})
                held[name] = _Name(id(tensor), tensor.untyped_storage().nbytes())

    def objections(self, names: Mapping[str, torch.Tensor], pooled: Callable[[int], bool]) -> list[Finding]:
        """Findings for addresses whose name now holds other memory, or that nobody owns any more.

        Args:
            names: the tensors that the user's names hold now.
            pooled: whether an address lies in the graph's pool, where only captures allocate.
        """
        found: list[Finding] = []
        for address, touched in self._touched.items():
            held = self._names.get(address, {})
            moved = {
                name: before for name, before in held.items() if name in names and _address(names[name]) != address
            }
            if held and len(moved) < len(held) and not touched.storage.expired():
                continue
            if moved:
                name, before = next(iter(moved.items()))
                found.append(_moved(name, before, names[name], touched))
            elif touched.storage.expired():
                workspace = touched.writes and touched.tag == "device" and pooled(address)
                found.append(_evicted(touched) if workspace else _died(touched, next(iter(held), "")))
        return found


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr()) if tensor.numel() else 0


def _moved(name: str, before: _Name, now: torch.Tensor, touched: Touched) -> Finding:
    nbytes = now.untyped_storage().nbytes()
    if nbytes > before.nbytes:
        code, what = "GC404", f"{name} was replaced by a larger buffer after capture"
    elif id(now) == before.tensor:
        code, what = "GC403", f"{name} was given other memory after capture"
    else:
        code, what = "GC401", f"{name} was rebound to another tensor after capture"
    alive = "freed" if touched.storage.expired() else "still alive"
    return Finding(
        code=code,
        message=f"{what}; the graph goes on reading the old address",
        where=touched.where,
        place=name,
        expected=f"{name} at 0x{touched.address:x} ({before.nbytes} bytes)",
        got=f"0x{_address(now):x} ({nbytes} bytes); the old memory is {alive}",
        advice=_ADVICE[code],
    )


def _evicted(touched: Touched) -> Finding:
    return Finding(
        code="GC411",
        message=f"the workspace that the graph uses ({touched.nbytes} bytes) was allocated by the capture of another "
        "graph, and freed with that graph",
        where=touched.where,
        place=f"0x{touched.address:x}",
        expected="a workspace that outlives every graph that uses it",
        got="no tensor holds that memory any more",
        advice=_ADVICE["GC411"],
    )


def _died(touched: Touched, name: str) -> Finding:
    code = "GC402" if touched.tag == "device" else "GC407"
    subject = name or f"{touched.nbytes} bytes of {touched.tag} memory"
    return Finding(
        code=code,
        message=f"{subject}, which the graph uses, was freed after capture",
        where=touched.where,
        place=f"0x{touched.address:x}",
        expected="an owner for as long as the graph is replayed",
        got="no tensor holds that memory any more",
        advice=_ADVICE[code],
    )
