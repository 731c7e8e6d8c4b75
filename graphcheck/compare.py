"""Bitwise comparison on the device, and the description of a mismatch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from graphcheck.cases import Case
from graphcheck.errors import ContractError
from graphcheck.poison import bits


@dataclass(frozen=True)
class Mismatch:
    """Where two tensors differ.

    Args:
        name: output or buffer.
        index: coordinate of the first differing element.
        expected, got: its values, decimal and hex.
        ulps: distance in units in the last place; None for integers.
        count, total: how many elements differ, of how many compared.
    """

    name: str
    index: tuple[int, ...]
    expected: str
    got: str
    ulps: int | None
    count: int
    total: int

    def place(self, case: Case | None) -> str:
        """The coordinate with the request it belongs to and that request's length, where the case tells."""
        text = f"{self.name}[{', '.join(map(str, self.index))}]"
        if case is None or not self.index:
            return text
        notes = []
        for field, value in case.fields.items():
            values = getattr(value, "values", None)
            if values is not None and not callable(values) and self.index[0] < len(values):
                notes.append(f"{field}[{self.index[0]}] = {values[self.index[0]]}")
        return f"{text} ({'; '.join(notes)})" if notes else text

    def summary(self) -> str:
        """How many elements differ and by how much the first does."""
        distance = f", {self.ulps} ulp apart" if self.ulps is not None else ""
        return f"{self.count} of {self.total} elements differ{distance}"


def region_mask(tensor: torch.Tensor, region: Any) -> torch.Tensor | None:
    """The region that `Component.written` gave, as a boolean mask of the tensor's shape; None means everything.

    Raises:
        ContractError: the mask does not broadcast to the tensor, or the index does not fit it.
    """
    if region is None:
        return None
    if isinstance(region, torch.Tensor) and region.dtype is torch.bool:
        try:
            return region.to(tensor.device).expand(tensor.shape)
        except RuntimeError as error:
            raise ContractError(
                f"written() gave a mask of shape {tuple(region.shape)} for a tensor of shape {tuple(tensor.shape)}; "
                "make it broadcastable"
            ) from error
    mask = torch.zeros(tensor.shape, dtype=torch.bool, device=tensor.device)
    try:
        mask[region] = True
    except (IndexError, RuntimeError, TypeError) as error:
        raise ContractError(f"written() gave an index that does not fit {tuple(tensor.shape)}: {error}") from error
    return mask


def differs(expected: torch.Tensor, got: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """Where the bits of two tensors of one shape and dtype differ, inside ``mask``: a boolean tensor on the device."""
    different = bits(expected) != bits(got)
    if expected.dtype is torch.complex128:
        different = different.any(-1)
    return different if mask is None else different & mask


def describe(name: str, expected: torch.Tensor, got: torch.Tensor, different: torch.Tensor) -> Mismatch:
    """The mismatch at the first differing element; reads the host."""
    different = different.cpu()
    flat = int(different.reshape(-1).to(torch.uint8).argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), different.shape)) if different.dim() else ()
    wanted, found = expected.detach().cpu()[index], got.detach().cpu()[index]
    return Mismatch(
        name=name,
        index=index,
        expected=_show(wanted),
        got=_show(found),
        ulps=ulp_distance(wanted, found),
        count=int(different.sum()),
        total=different.numel(),
    )


def ulp_distance(expected: torch.Tensor, got: torch.Tensor) -> int | None:
    """Units in the last place between two 0-dim CPU floats; None for other dtypes and where one is NaN."""
    if not expected.dtype.is_floating_point or bool(expected.isnan()) or bool(got.isnan()):
        return None
    if expected.element_size() == 1:
        return None
    return abs(_ordinal(expected) - _ordinal(got))


def _ordinal(value: torch.Tensor) -> int:
    """The float's place among all floats of its dtype, so that neighbours differ by one and both zeros are 0."""
    raw = int(bits(value))
    low = -(1 << (8 * value.element_size() - 1))
    return raw if raw >= 0 else low - raw


def _show(value: torch.Tensor) -> str:
    if value.dtype.is_complex:
        return str(value.item())
    width = value.element_size()
    raw = int(bits(value)) % (1 << 8 * width)
    number = value.item()
    text = f"{number:.9g}" if isinstance(number, float) and math.isfinite(number) else str(number)
    return f"{text} (0x{raw:0{2 * width}x})"


class Comparator:
    """Collects comparisons on the device and asks the host once.

    In ``immediate`` mode every comparison is read at once and described; otherwise `pending` tells at the end whether
    anything differed, and the caller runs the plan again in immediate mode.
    """

    def __init__(self, immediate: bool) -> None:
        self.immediate = immediate
        self.compared_bytes = 0
        self._flags: list[torch.Tensor] = []

    def check(
        self,
        name: str,
        expected: torch.Tensor,
        got: torch.Tensor,
        mask: torch.Tensor | None,
        found: Callable[[Mismatch], None],
    ) -> None:
        """Compare bits inside ``mask``; ``found`` is called with the mismatch in immediate mode."""
        if expected.numel() == 0:
            return
        self.compared_bytes += expected.numel() * expected.element_size()
        self.flag(name, differs(expected, got, mask), expected, got, found)

    def flag(
        self,
        name: str,
        different: torch.Tensor,
        expected: torch.Tensor,
        got: torch.Tensor,
        found: Callable[[Mismatch], None],
    ) -> None:
        """Note the elements marked by ``different`` as a mismatch of ``got`` against ``expected``."""
        if self.immediate:
            if bool(different.any()):
                found(describe(name, expected, got, different))
        else:
            self._flags.append(different.any().reshape(1))

    def pending(self) -> bool:
        """Whether any comparison since the last call differed; one host read."""
        flags, self._flags = self._flags, []
        by_device: dict[torch.device, list[torch.Tensor]] = {}
        for flag in flags:
            by_device.setdefault(flag.device, []).append(flag)
        return any(bool(torch.cat(group).any()) for group in by_device.values())
