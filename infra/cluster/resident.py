"""Objects a worker keeps between calls: a model, an optimiser, a tokenizer.

The state lives in this importable module and never in `__main__`: cloudpickle copies what is defined in `__main__`, and
such state would start empty at every call.
"""

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
ANY = object()  # a key that matches every object


@dataclass
class _Slot:
    lock: threading.RLock  # one per name, so that a slow build of one object does not hold up another
    key: Hashable = None
    kept: tuple[Any, ...] = ()  # empty, or the one object


_slots: dict[str, _Slot] = {}
_slots_lock = threading.Lock()


def _slot(name: str) -> _Slot:
    with _slots_lock:
        return _slots.setdefault(name, _Slot(threading.RLock()))


def resident(name: str, key: Hashable, build: Callable[[], T]) -> T:
    """The object `name` of this process as of `key`, built when there is none or its key differs.

    The old object is dropped before the new one is built, so that two models never share the memory. After a build that
    raises, the next call builds again.
    """
    slot = _slot(name)
    with slot.lock:
        if not slot.kept or slot.key != key:
            slot.kept = ()
            slot.kept = (build(),)
            slot.key = key
        kept: T = slot.kept[0]
        return kept


def resident_now(name: str, key: Hashable = ANY) -> object | None:
    """The object `name` as of `key`, None while it is not there or being built; never waits."""
    slot = _slot(name)
    if not slot.lock.acquire(blocking=False):
        return None
    try:
        return slot.kept[0] if slot.kept and key in (slot.key, ANY) else None
    finally:
        slot.lock.release()


def drop(name: str) -> None:
    """Drop the object `name`, if there is one."""
    slot = _slot(name)
    with slot.lock:
        slot.kept = ()
