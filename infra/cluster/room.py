"""Room for models on a device: which of those that are there give way for one more.

As many stay as the device's budget holds (`infra.cluster.budget`). Those that no call works with give way, the one that
was used longest ago first: from a device with memory of its own to the machine's memory, until their next call; from
the machine's memory altogether, where they can be made again.
"""

import logging
import threading
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from infra.cluster.budget import MACHINE, budget
from infra.cluster.machine import GB

logger = logging.getLogger(__name__)


class Device(Protocol):
    """Where a model computes."""

    @property
    def name(self) -> str:
        """cuda, mps or cpu."""

    @property
    def total(self) -> int:
        """Bytes of its memory."""

    @property
    def apart(self) -> bool:
        """Whether that is another than the machine's."""


class Memory(Protocol):
    """What a model holds."""

    @property
    def device(self) -> Device:
        """Where it computes, parked or not."""

    @property
    def nbytes(self) -> int:
        """Bytes that it takes there, with those that its calls will add and keep."""

    def park(self) -> None:
        """Move it to the machine's memory. Where that raises, nothing has changed."""

    def unpark(self) -> None:
        """Move it back, bit for bit. Where that raises, nothing has changed."""


@dataclass(frozen=True)
class _Machine:
    name: str = MACHINE
    total: int = 0  # the budget knows
    apart: bool = False


@dataclass(eq=False)
class Slot:
    """A name, and the object that is kept under it."""

    name: str
    # one per name, so that a slow build of one object does not hold up others; held while it is made, moved or dropped
    lock: threading.RLock = field(default_factory=threading.RLock)
    key: Hashable = None
    kept: tuple[Any, ...] = ()  # empty, or the one object
    device: Device | None = None  # of a model; None of another object, and before there was one
    nbytes: int = 0  # of a model, as last measured; it stays for when it is made again
    at: str = ""  # the memory that they count for: its device's, the machine's while it is parked, none
    again: bool = False  # whether it can be made again
    users: int = 0  # calls that work with it, or wait for it
    used: int = 0  # the larger, the later

    @property
    def on_device(self) -> bool:
        """Whether it is a model where it computes."""
        return self.device is not None and self.at == self.device.name

    @property
    def size(self) -> int:
        """Bytes: of a model as last measured, of another object its `nbytes`, if it has some."""
        kept = self.kept
        return self.nbytes if self.device is not None else getattr(kept[0], "nbytes", 0) if kept else 0

    def takes(self, memory: str) -> int:
        """Bytes that it takes of a memory."""
        if self.device is None:
            return self.size if memory == MACHINE else 0
        shared = memory == MACHINE and self.on_device and not self.device.apart
        return self.size if self.at == memory or shared else 0

    def empty(self) -> None:
        """Let go of the object."""
        self.kept, self.at = (), ""


class Room:
    """The slots of a process, and what they take.

    Whoever makes room waits for no slot's lock meanwhile: a model whose lock is held stays. So threads that hold one
    slot's lock, and want room, never wait for each other's.
    """

    def __init__(self) -> None:
        self.slots: dict[str, Slot] = {}
        self.counting = threading.Lock()  # of the slots, and of their users; nothing is waited for under it
        self._making = threading.Lock()  # one thread makes room at a time
        self._said: set[tuple[str, ...]] = set()

    def slot(self, name: str) -> Slot:
        """The slot of that name."""
        with self.counting:
            return self.slots.setdefault(name, Slot(name))

    def take(self, slot: Slot, device: Device) -> None:
        """Make room on the device for what this slot is to hold there, and count it."""
        with self._making:
            self._make(device, slot.nbytes)
            slot.at = device.name

    def take_all(self) -> None:
        """Make room for nobody knows how much: park all that is unused in a device's own memory."""
        with self._making:
            for slot in self._by_use():
                with _unused(slot) as unused:
                    if unused and slot.on_device and slot.device is not None and slot.device.apart:
                        self._park(slot)

    def settle(self, device: Device) -> None:
        """Have models give way where there are too many by now. Those in use stay, which is said."""
        if self._fits(device):
            return
        with self._making:
            self._make(device)
            for memory in _memories(device):
                if self._excess(memory, device) > 0:
                    most = budget(memory, device.total) / GB
                    there = sorted((slot for slot in self._by_use() if slot.takes(memory)), key=lambda of: of.name)
                    line = f"{memory} has {most:.3g} GB for models, and those that stay take more: {listed(there)}"
                    self._say(line, memory, *(slot.name for slot in there))

    def beside(self, name: str) -> str:
        """The models that are where they compute, beside this one, for people; empty where there are none."""
        return listed(slot for slot in self._by_use() if slot.on_device and slot.name != name)

    def _make(self, device: Device, more: int = 0) -> None:
        """Have models give way until so many bytes more fit, as far as there are any that can."""
        for slot in self._by_use():
            if self._fits(device, more):
                return
            if any(slot.takes(memory) for memory in _memories(device)):
                with _unused(slot) as unused:
                    if unused:
                        self._give_way(slot)

    def _give_way(self, slot: Slot) -> None:
        where = slot.at
        if slot.on_device and slot.device is not None and slot.device.apart and self._park(slot):
            self._say(
                f"{listed([slot])} waits in the machine's memory between its turns on {where}", slot.name, MACHINE
            )
        elif slot.again:
            slot.empty()
            self._say(f"{listed([slot])} is loaded anew for its turns: {where} has no room between them", slot.name)

    def _park(self, slot: Slot) -> bool:
        """Move it to the machine's memory; False where that has no room."""
        stays = sum(each.takes(MACHINE) for each in self._by_use() if each.users or not each.again)
        if stays + slot.nbytes > budget(MACHINE, 0):
            return False  # before others are dropped in vain
        self._make(_Machine(), slot.nbytes)
        if not self._fits(_Machine(), slot.nbytes):
            return False
        slot.kept[0].memory.park()
        slot.at = MACHINE
        return True

    def _fits(self, device: Device, more: int = 0) -> bool:
        return all(self._excess(memory, device) + more <= 0 for memory in _memories(device))

    def _excess(self, memory: str, device: Device) -> float:
        """Bytes that models take of it beyond its budget; below 0 while there is room."""
        return sum(slot.takes(memory) for slot in self._by_use()) - budget(memory, device.total)

    def _by_use(self) -> list[Slot]:
        """The slots, the one that was used longest ago first."""
        with self.counting:
            return sorted(self.slots.values(), key=lambda slot: slot.used)

    def _say(self, line: str, *about: str) -> None:
        """To the worker's log, once of the same."""
        if about not in self._said:
            self._said.add(about)
            logger.warning(line)


@contextmanager
def _unused(slot: Slot) -> Iterator[bool]:
    """Whether it holds a model that no call works with, which stays so inside."""
    if not slot.lock.acquire(blocking=False):
        yield False
        return
    try:
        yield bool(slot.kept) and slot.device is not None and not slot.users
    finally:
        slot.lock.release()


def _memories(device: Device) -> set[str]:
    """What a model on it takes of."""
    return {device.name} if device.apart else {device.name, MACHINE}


def listed(slots: Iterable[Slot]) -> str:
    """Names and sizes, for people."""
    return ", ".join(f"{slot.name} ({slot.size / GB:.3g} GB)" for slot in slots)
