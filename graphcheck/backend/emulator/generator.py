"""Random numbers on the device: generators that are CPU generators underneath, and who may draw from them."""

from __future__ import annotations

import weakref
from typing import Any, Self

import torch

from graphcheck.backend.emulator.device import DEVICE

# The name in torch is replaced while the emulator is active.
HostGenerator = torch.Generator
_STATE = "it touches the generator's host state"


class DeviceGenerator(HostGenerator):
    """A generator that says ``cuda:0``."""

    def __new__(cls, device: Any = "cuda") -> Self:
        return super().__new__(cls, "cpu")  # type: ignore[call-arg]

    def __init__(self, device: Any = "cuda") -> None:
        GENERATORS.adopt(self)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda:0")

    def manual_seed(self, seed: int) -> DeviceGenerator:
        refuse_state("manual_seed")
        super().manual_seed(seed)
        return self

    def seed(self) -> int:
        refuse_state("seed")
        return super().seed()

    def get_state(self) -> torch.Tensor:
        refuse_state("get_state")
        return super().get_state()

    def set_state(self, new_state: torch.Tensor) -> DeviceGenerator:
        refuse_state("set_state")
        super().set_state(new_state)
        return self

    def graphsafe_get_state(self) -> DeviceGenerator:
        return self

    def clone_state(self) -> DeviceGenerator:
        copy = DeviceGenerator()
        HostGenerator.set_state(copy, HostGenerator.get_state(self))
        return copy


class Generators:
    """The default device generator and the user's own."""

    def __init__(self) -> None:
        self.known: dict[int, weakref.ref[DeviceGenerator]] = {}
        self.default: DeviceGenerator = None  # type: ignore[assignment]

    def adopt(self, generator: DeviceGenerator) -> None:
        self.known[generator._cdata] = weakref.ref(generator)  # type: ignore[attr-defined]

    def find(self, generator: torch.Generator) -> DeviceGenerator | None:
        """The device generator behind the object that C++ handed over, None for a host generator."""
        held = self.known.get(generator._cdata)  # type: ignore[attr-defined]
        return held() if held is not None else None

    def check(self, generator: torch.Generator | None) -> None:
        """Refuse a generator that is not registered with the graph that is being captured."""
        if generator is None or DEVICE.capture is None:
            return
        found = self.find(generator)
        if found is not None and (found is self.default or found in DEVICE.capture.generators):
            return
        DEVICE.refuse(
            "GC801",
            "an operation draws from a generator that is not registered with the graph",
            "register it before the capture: graph.register_generator_state(generator)",
        )

    def draw(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a random operator on raw tensors with the device's generator."""
        given = kwargs.get("generator")
        if given is not None:
            if self.find(given) is None:
                raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
            return func(*args, **kwargs)
        if any(argument.name == "generator" for argument in func._schema.arguments):
            return func(*args, **{**kwargs, "generator": self.default})
        return self.swapped(func, *args, **kwargs)

    def swapped(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run ``func`` while the host's default generator stands in the device generator's state."""
        host = torch.default_generator
        saved = host.get_state()
        host.set_state(HostGenerator.get_state(self.default))
        try:
            return func(*args, **kwargs)
        finally:
            HostGenerator.set_state(self.default, host.get_state())
            host.set_state(saved)

    def get_state(self) -> torch.Tensor:
        return HostGenerator.get_state(self.default)

    def set_state(self, state: torch.Tensor) -> None:
        HostGenerator.set_state(self.default, state)


def refuse_state(call: str) -> None:
    """Refuse a call on random state while capturing."""
    if DEVICE.capture is not None and DEVICE.recording:
        DEVICE.refuse(
            "GC802",
            f"{call} was called while the stream is capturing: {_STATE}",
            "set and read random state outside the region",
        )


GENERATORS = Generators()
GENERATORS.default = DeviceGenerator()
GENERATORS.default.manual_seed(0)
