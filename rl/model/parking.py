"""The memory of a model by turns: on its device while it computes, in the machine's memory otherwise."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import psutil
import torch
from torch import Tensor, nn

MACHINE = torch.device("cpu")


@dataclass(frozen=True)
class Device:
    """Where models compute."""

    name: str
    total: int  # bytes of its memory
    apart: bool  # whether that is another than the machine's

    @classmethod
    def of(cls, device: torch.device) -> "Device":
        if device.type == "cuda":
            properties = torch.cuda.get_device_properties(device)
            return cls(device.type, properties.total_memory, apart=not properties.is_integrated)  # as a Jetson's
        total = torch.mps.recommended_max_memory() if device.type == "mps" else psutil.virtual_memory().total
        return cls(device.type, total, apart=False)


class ModelMemory:
    """Parameters and buffers of a model, and gradients while it has some. They are the same objects wherever they lie,
    so that an optimizer keeps its parameters."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model = model
        self._on = device
        self._parked: list[tuple[Tensor, torch.device]] = []  # and where they were

    @cached_property
    def device(self) -> Device:
        """Where it computes, parked or not."""
        return Device.of(self._on)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes of its device, or will when it is back there."""
        places = {(each.data_ptr(), each.nbytes): each.nbytes for each in self._tensors()}
        return sum(places.values())

    def park(self) -> None:
        """Move what lies on the device to the machine's memory. Nothing has changed where that has no room."""
        there = [each for each in self._tensors() if each.device.type == self._on.type]
        before = [(each, each.device) for each in there]
        _move((each, MACHINE) for each in there)
        self._parked = before

    def unpark(self) -> None:
        """Move it back, bit for bit. Nothing has changed where the device has no room."""
        _move(self._parked)
        self._parked = []

    def _tensors(self) -> Iterator[Tensor]:
        """Each once."""
        for parameter in self._model.parameters():
            yield parameter
            if parameter.grad is not None:
                yield parameter.grad
        yield from self._model.buffers()


def _move(places: Iterable[tuple[Tensor, torch.device]]) -> None:
    """Move these tensors, those that are the same memory together."""
    moved: dict[tuple[object, ...], Tensor] = {}
    changed = []
    with torch.no_grad():
        for tensor, device in places:
            key = tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
            if key not in moved:
                moved[key] = tensor.detach().to(device, copy=True)
            changed.append((tensor, moved[key]))
        for tensor, copy in changed:
            tensor.data = copy
