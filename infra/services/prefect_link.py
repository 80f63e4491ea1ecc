"""The way from this process to the Prefect server of its home: whether it is there, and started again when it dies.

A server that has died leaves its port to whoever takes it: nothing is told to an address before the one who answers
there has shown to be the server that was meant. No Prefect is imported.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.services.http import answers
from infra.services.prefect_server import PrefectServer, is_of, is_own, service_of
from infra.services.supervisor import BackOff, this_machine

POLL_SECONDS = 1.0
ANSWER_SECONDS = 2.0
ASK_SECONDS = 5.0  # between two questions to a server that lives
HUNG_SECONDS = 120.0  # so long without an answer is as good as dead; to start takes less
STOPPED_SECONDS = 15.0  # between two questions: it is this process that was stopped, or very busy


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
    """Start a server of this home again whenever it dies, later each time, or does not answer any more; and say so."""
    over = threading.Event()

    def watch() -> None:
        back_off, asked = BackOff(), _Asked(server)
        while not over.wait(POLL_SECONDS):
            what = "has died"
            if server.service.lives():
                if not asked.hangs() or over.is_set():
                    continue
                server.service.end()
                what = f"has not answered for {HUNG_SECONDS:.0f} s"
            say(f"the Prefect server {what}: it is started again, and told what it has missed")
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


class _Asked:
    """Whether a server that lives does not answer. One that another process keeps is that one's to end."""

    def __init__(self, server: PrefectServer) -> None:
        self._server = server
        self._pid: int | None = None  # the supervisor of the one that was asked
        self._heard = self._asked = 0.0

    def hangs(self) -> bool:
        """Ask it, unless that was just now."""
        began, before = time.monotonic(), self._asked
        if began - before < ASK_SECONDS:
            return False
        self._asked = began
        found = self._server.service.found()
        if began - before > STOPPED_SECONDS or found.get("pid") != self._pid:
            self._heard, self._pid = began, found.get("pid")  # nobody has asked; or it is another one
        if is_of(self._server.home, self._server.url, ANSWER_SECONDS):
            self._heard = began
        silent = began - self._heard > HUNG_SECONDS
        return silent and found.get("machine") == this_machine() and not self._server.is_kept_elsewhere()
