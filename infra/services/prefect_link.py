"""The way from this process to the Prefect server of its home: whether it is there, and started again when it dies.

A server that has died leaves its port to whoever takes it: nothing is told to an address before the one who answers
there has shown to be the server that was meant. No Prefect is imported.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.services.http import answers
from infra.services.prefect_server import PrefectServer, is_of, is_own, service_of
from infra.services.supervisor import BackOff

POLL_SECONDS = 1.0
ANSWER_SECONDS = 2.0


class PrefectLink:
    """Whether the server at `url` can be told something. Safe to ask from several threads."""

    def __init__(self, home: Path, url: str) -> None:
        self.url = url
        self._home = home
        self._service = service_of(home)
        self.is_ours = is_own(home, url)  # else whoever named it answers for it
        self._known: int | None = None  # the supervisor of the server that has shown whose it is

    def serves(self, *, now: bool = False) -> bool:
        """Whether it is there and is the one meant. What is known of a server of this home is kept as long as it
        lives, which costs no connection; `now` asks it anyway."""
        if not self.is_ours:
            return answers(self.url, timeout=ANSWER_SECONDS)
        found = self._service.found()
        if found.get("url") != self.url or not self._service.lives():
            return False
        if now or found.get("pid") != self._known:
            if not is_of(self._home, self.url, ANSWER_SECONDS):
                return False
            self._known = found.get("pid")
        return True


@contextmanager
def kept_alive(server: PrefectServer, say: Callable[[str], None]) -> Iterator[None]:
    """Start a server of this home again whenever it dies, later each time, and say so."""
    over = threading.Event()

    def watch() -> None:
        back_off = BackOff()
        while not over.wait(POLL_SECONDS):
            if server.service.lives():
                continue
            say("the Prefect server has died: it is started again, and told what it has missed")
            while not server.service.lives() and not over.wait(back_off.pause(0.0)):
                server.revive()  # at its address, which the processes that use it know

    watching = threading.Thread(target=watch, name="prefect server", daemon=True)
    if server.is_ours:
        watching.start()
    try:
        yield
    finally:
        over.set()
        if server.is_ours:
            watching.join()
