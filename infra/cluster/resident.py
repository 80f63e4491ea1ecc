"""Objects a worker keeps between calls: a model, an optimiser, a tokenizer; of models those that there is room for.

The state lives in this importable module and never in `__main__`: cloudpickle copies what is defined in `__main__`, and
such state would start empty at every call.
"""

import itertools
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from infra.cluster.room import Memory, Room, Slot


class Model(Protocol):
    """What is kept on a device."""

    @property
    def memory(self) -> Memory:
        """Always the same."""


T = TypeVar("T")
M = TypeVar("M", bound=Model)
ANY = object()  # a key that matches every object

_room = Room()
_turns = itertools.count(1)


def resident(name: str, key: Hashable, build: Callable[[], T]) -> T:
    """The object `name` of this process as of `key`, built when there is none or its key differs. It never gives
    way; an attribute `nbytes` of it counts for the machine's memory.

    The old object is dropped before the new one is built, so that two models never share the memory. After a build that
    raises, the next call builds again.
    """
    slot = _room.slot(name)
    with slot.lock:
        if not slot.kept or slot.key != key:
            slot.empty()
            slot.device = None
            slot.kept = (build(),)
            slot.key = key
        kept: T = slot.kept[0]
        return kept


@contextmanager
def using(name: str, key: Hashable, build: Callable[[], M], *, again: bool) -> Iterator[M]:
    """As `resident`, a model, which may give way to others while no call uses it (`infra.cluster.room`). `again`:
    whether it is nothing more than `build` makes, and may be dropped.

    It is measured when it was built, and after each use. Before it is built for the first time nobody knows what it
    takes, so that all others that can be parked are. Those in use are not waited for, which might be for oneself: where
    they take too much, the worker's log names them. Raises what `build` and `Memory.unpark` raise, and ValueError where
    the environment has no valid budget.
    """
    slot = _room.slot(name)
    with _room.counting:
        slot.users += 1
    try:
        model = _brought(slot, key, build, again=again)
        try:
            yield model
        finally:
            _measure(slot, model)
    finally:
        with _room.counting:
            slot.users -= 1
            slot.used = next(_turns)


def resident_now(name: str, key: Hashable = ANY) -> object | None:
    """The object `name` as of `key`, None while it is not there or being built; never waits. A model may be parked."""
    slot = _room.slot(name)
    if not slot.lock.acquire(blocking=False):
        return None
    try:
        return slot.kept[0] if slot.kept and key in (slot.key, ANY) else None
    finally:
        slot.lock.release()


def drop(name: str) -> None:
    """Drop the object `name`, if there is one. Whoever is using it keeps it until then."""
    slot = _room.slot(name)
    with slot.lock:
        slot.empty()


def beside(name: str) -> str:
    """The models that are on devices beside `name`, and what they take, for people; empty where there are none."""
    return _room.beside(name)


def _brought(slot: Slot, key: Hashable, build: Callable[[], M], *, again: bool) -> M:
    """Its model as of `key`, where it computes."""
    with slot.lock:
        if not slot.kept or slot.key != key:
            _build(slot, key, build, again=again)
        elif slot.device is not None and not slot.on_device:
            before = slot.at
            _room.take(slot, slot.device)
            try:
                slot.kept[0].memory.unpark()
            except BaseException:
                slot.at = before
                raise
        model: M = slot.kept[0]
        device = model.memory.device
    _room.settle(device)
    return model


def _build(slot: Slot, key: Hashable, build: Callable[[], M], *, again: bool) -> None:
    slot.empty()
    try:
        if slot.device is not None and slot.key == key:  # it was here before
            _room.take(slot, slot.device)
        else:
            _room.take_all()
        model = build()
    except BaseException:
        slot.empty()
        raise
    memory = model.memory
    slot.key, slot.again, slot.device, slot.nbytes = key, again, memory.device, memory.nbytes
    slot.kept, slot.at = (model,), memory.device.name


def _measure(slot: Slot, model: Model) -> None:
    nbytes = model.memory.nbytes
    if slot.kept and slot.kept[0] is model:  # else another one is there by now
        slot.nbytes = nbytes
