"""The models that a worker holds, for the length of a call."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from infra.cluster.resident import Model, beside, using

M = TypeVar("M", bound=Model)


@contextmanager
def held(name: str, key: Hashable, build: Callable[[], M], *, again: bool) -> Iterator[M]:
    """As `using`. Raises NoRoomError where memory is lacking, here or inside, which names the models that are there."""
    from rl.model.memory import NoRoomError, is_out_of_memory

    try:
        with using(name, key, build, again=again) as model:
            yield model
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, NoRoomError):
            said = str(error)
        elif is_out_of_memory(error):
            said = f"memory has run out for the {name}: take a smaller policy.model"
        else:
            raise
        if others := beside(name):
            said += f"; this worker also keeps there {others}, as many as cluster.memory allows"
        raise NoRoomError(said) from error
