"""The link of this process to the Prefect server of its home: whether it serves, and its restart when it dies.

A server that has died leaves its port to any program: nothing is sent to an address before the server there has proved
to be the home's. No Prefect is imported.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.services.http import answers
from infra.services.prefect_server import PrefectServer, is_of, is_own, service_of
from infra.services.supervisor import BackOff, boot_name

POLL_SECONDS = 1.0
ANSWER_SECONDS = 2.0
ASK_SECONDS = 5.0  # between two health checks of a server that lives
HUNG_SECONDS = 120.0  # without an answer before the server is ended and started again; a start takes less
STOPPED_SECONDS = 15.0  # between two health checks: this process itself was stopped, or very busy


class PrefectLink:
    """Whether the server at `url` serves. Safe to use from several threads."""

    def __init__(self, home: Path, url: str) -> None:
        self.url = url
        self._home = home
        self._service = service_of(home)
        self.is_ours = is_own(home, url)  # another one need not prove anything: its user has named it
        self._known: int | None = None  # the supervisor of the server that has proved to be the home's

    def serves(self, *, now: bool = False) -> bool:
        """Whether the server answers and, if it is to be the home's, has proved that. A server that has is asked again
        only with `now`: while it lives, that costs no connection."""
        if not self.is_ours:
            return answers(self.url, timeout=ANSWER_SECONDS)
        found = self._service.found()
        if found.url != self.url or not self._service.lives():
            return False
        if now or found.pid != self._known:
            if not is_of(self._home, self.url, ANSWER_SECONDS):
                return False
            self._known = found.pid
        return True


@contextmanager
def kept_alive(server: PrefectServer, say: Callable[[str], None]) -> Iterator[None]:
    """Start a server of this home again whenever it dies, later each time, or stops answering; and say so."""
    over = threading.Event()

    def watch() -> None:
        back_off, health = BackOff(), _HealthCheck(server)
        while not over.wait(POLL_SECONDS):
            what = "has died"
            if server.service.lives():
                if not health.hangs() or over.is_set():
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


class _HealthCheck:
    """Whether a living server hangs. One whose port another process keeps is for that process to end."""

    def __init__(self, server: PrefectServer) -> None:
        self._server = server
        self._pid: int | None = None  # the supervisor of the one that was asked
        self._heard = self._asked = 0.0

    def hangs(self) -> bool:
        """Check the server at most every `ASK_SECONDS`; whether it has been silent for `HUNG_SECONDS`."""
        began, before = time.monotonic(), self._asked
        if began - before < ASK_SECONDS:
            return False
        self._asked = began
        found = self._server.service.found()
        if began - before > STOPPED_SECONDS or found.pid != self._pid:
            self._heard, self._pid = began, found.pid  # nothing was asked meanwhile, or it is another server
        if is_of(self._server.home, self._server.url, ANSWER_SECONDS):
            self._heard = began
        silent = began - self._heard > HUNG_SECONDS
        return silent and found.machine == boot_name() and not self._server.is_kept_elsewhere()
