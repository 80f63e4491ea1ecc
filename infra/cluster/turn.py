"""One training run at a time on a cluster: a second one waits for its turn."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from distributed import Client, Lock

TRAINING = ["rlvf", "training"]  # the scheduler's metadata: the name of the run that trains
LOOK_SECONDS = 1.0


@contextmanager
def turn(client: Client, name: str, say: Callable[[str], None]) -> Iterator[None]:
    """Wait until no other run trains on the cluster, and keep others waiting until the end of the context.

    A run that is killed loses its turn when the scheduler has not heard of it for 30 s (Dask's
    ``distributed.scheduler.locks.lease-timeout``).
    """
    lock = Lock("rlvf training", scheduler_rpc=client.scheduler, loop=client.loop)  # type: ignore[no-untyped-call]
    if not lock.acquire(timeout=LOOK_SECONDS):  # type: ignore[no-untyped-call]
        say(f"waiting: {training(client) or 'another run'} trains on this cluster")
        while not lock.acquire(timeout=LOOK_SECONDS):  # type: ignore[no-untyped-call]
            pass
    try:
        client.set_metadata(TRAINING, name)  # type: ignore[no-untyped-call]
        yield
    finally:
        if client.status == "running":
            client.set_metadata(TRAINING, None)  # type: ignore[no-untyped-call]
            lock.release()  # type: ignore[no-untyped-call]


def training(client: Client) -> str | None:
    """The name of the run that trains on the cluster now."""
    name = client.get_metadata(TRAINING, default=None)  # type: ignore[no-untyped-call]
    return None if name is None else str(name)
