"""The log of a flow run at Prefect, which its page and `--watch` show: kept until its server has it.

Prefect's own handler would print each line on the terminal once more, ask a dead server for minutes at the end, and
tell a stranger on its port.
"""

import logging
import threading
from collections import deque
from contextlib import suppress
from contextvars import copy_context
from datetime import UTC, datetime
from uuid import UUID

from prefect.client.schemas.actions import LogCreate
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, PREFECT_LOGGING_TO_API_ENABLED, temporary_settings

from infra.security.printable import printable
from infra.security.secrets import masked
from infra.services.prefect_client import Serves, guarded_client

PAUSE_SECONDS = 1.0  # between two requests
KEPT = 2_000  # lines that wait; some hours of a run whose server is away
BATCH = 200  # lines of one request
WARNING = "warning: "  # how such a line begins


class PrefectLog:
    """Lines for the flow run that is named by `begin`, from `open` to `close`; `say` returns at once."""

    def __init__(self, serves: Serves) -> None:
        """`serves` is asked before each request."""
        self._serves = serves
        self._flow_run: UUID | None = None
        self._waiting: deque[tuple[datetime, str]] = deque()
        self._lost = 0  # that found no room
        self._over = threading.Event()
        # the context holds Prefect's settings; a daemon, as a server that hangs must not keep the process
        self._thread = threading.Thread(target=copy_context().run, args=(self._tell,), name="prefect log", daemon=True)

    def open(self) -> None:
        if PREFECT_LOGGING_TO_API_ENABLED.value():
            self._thread.start()

    def begin(self, flow_run: UUID) -> None:
        """From now on the lines are this flow run's, those that wait for one included."""
        self._flow_run = flow_run

    def say(self, text: str) -> None:
        """A line, without secrets."""
        if len(self._waiting) < KEPT:
            self._waiting.append((datetime.now(UTC), printable(masked(text))))
        else:
            self._lost += 1

    def end(self) -> None:
        """No line follows: the last ones are told at once."""
        self._over.set()

    def close(self, seconds: float) -> int:
        """Give the server that much time; how many lines it has not got then."""
        self.end()
        if self._thread.ident is None or self._flow_run is None:  # nobody wants them
            return 0
        self._thread.join(seconds)
        return self._lost + len(self._waiting)

    def _tell(self) -> None:
        # asked again in a second anyway
        with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}), guarded_client(self._serves) as client:
            over = False
            while not over:
                over = self._over.wait(PAUSE_SECONDS)
                with suppress(Exception):  # whatever it is, the lines are still here, and it is said at the end
                    while self._waiting and self._flow_run is not None and self._serves():
                        batch = [self._waiting[at] for at in range(min(BATCH, len(self._waiting)))]
                        client.create_logs([_line(self._flow_run, *each) for each in batch])
                        for _ in batch:
                            self._waiting.popleft()


def _line(flow_run: UUID, when: datetime, text: str) -> LogCreate:
    level = logging.WARNING if text.startswith(WARNING) else logging.INFO
    return LogCreate(name="rlvf", level=level, message=text, timestamp=when, flow_run_id=flow_run)
