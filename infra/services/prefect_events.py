"""Prefect's events (the states of task runs), kept until its server has them.

Prefect's own queue gives each event seconds of retries and an error when the server is away, and a run of some hundred
steps has thousands of them: its end would take hours. Here they wait, and go on when the server is back.
"""

import asyncio
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from contextvars import copy_context
from typing import Any
from urllib.parse import urlsplit

from prefect.events.clients import PrefectEventsClient
from prefect.events.schemas.events import Event
from prefect.events.worker import EventsWorker, ProcessPoolForwardingEventsClient
from prefect.settings import PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED, temporary_settings

from infra.services.prefect_link import PrefectLink

POLL_SECONDS = 0.1  # between two polls of an empty queue
AWAY_SECONDS = 1.0  # before the next attempt at a server that was away
TELL_SECONDS = 10.0  # for the server to take an event
RECENT_SECONDS = 60.0  # a busy server may have an event in memory only; it drops one that is sent twice
KEPT = 20_000  # events: some 40 MB


class Outbox:
    """Prefect's queue of events in this process, from `open` to `close`."""

    def __init__(self, link: PrefectLink) -> None:
        """`link`: to the server, which is asked before each connection."""
        self._link = link
        self._waiting: deque[Event] = deque()
        self._recent: deque[tuple[float, Event]] = deque()  # sent, and when
        self._lost = 0  # events that found no room
        self.last: tuple[str, str] | None = None  # the task run that the newest event is about, and its state's name
        self._over = threading.Event()
        self._ended = False
        # the context holds Prefect's settings
        self._thread = threading.Thread(
            target=copy_context().run, args=(lambda: asyncio.run(self._tell()),), name="prefect events", daemon=True
        )

    def open(self) -> None:
        # the client by which processes of Prefect's own pool hand over their events: it only calls `put`
        EventsWorker.set_client_override(ProcessPoolForwardingEventsClient, event_queue=self)
        self._thread.start()

    def close(self, seconds: float) -> int:
        """Send what is left; the number of events that Prefect lacks after `seconds`, or at once if it is away."""
        if not self._ended:
            self._ended = True
            until = time.monotonic() + seconds
            EventsWorker.drain_all(timeout=seconds)  # into `put`, which never waits
            EventsWorker.set_client_override(None)
            self._over.set()
            self._thread.join(max(0.0, until - time.monotonic()))
        return self._lost + len(self._waiting)

    def put(self, item: tuple[str, Event]) -> None:
        """Called by Prefect."""
        kind, _, run = item[1].resource.id.rpartition(".")
        if kind == "prefect.task-run":
            self.last = run, item[1].event.rpartition(".")[2]
        if len(self._waiting) < KEPT:
            self._waiting.append(item[1])
        else:
            self._lost += 1

    async def _tell(self) -> None:
        while True:
            over = self._over.is_set()
            there = len(self._waiting) > 0 and await asyncio.to_thread(self._link.serves)
            if there:
                with suppress(Exception):  # whatever it is, the events are still here, and `close` counts them
                    await self._over_one_connection()
                    return
                self._waiting.extendleft(event for _, event in reversed(self._recent))
                self._recent.clear()
            if over:
                return
            await asyncio.sleep(AWAY_SECONDS if self._waiting else POLL_SECONDS)

    async def _over_one_connection(self) -> None:
        """Send events until `close`. Raises when the connection fails."""
        client = PrefectEventsClient(self._link.url, reconnection_attempts=0, checkpoint_every=1)
        async with asyncio.timeout(TELL_SECONDS):
            if self._link.is_ours:
                client._connect.connection_kwargs["sock"] = await asyncio.to_thread(self._proved)
            # whoever is there would be asked for its version, with the password
            with temporary_settings({PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED: False}):
                await client.__aenter__()
        try:
            while True:
                over = self._over.is_set()
                while self._waiting:
                    async with asyncio.timeout(TELL_SECONDS):
                        await client.emit(self._waiting[0])  # with a checkpoint each: it has it when this returns
                    self._recent.append((time.monotonic(), self._waiting.popleft()))
                if self._recent and time.monotonic() - self._recent[-1][0] > RECENT_SECONDS:
                    if not await asyncio.to_thread(self._link.serves):
                        raise ConnectionResetError(self._link.url)
                    self._recent.clear()
                if over:
                    return
                await asyncio.sleep(POLL_SECONDS)
        finally:
            await _closed(client)

    def _proved(self) -> socket.socket:
        """A connection to the server, which proves that it is the home's when that is there: whoever has taken the port
        before holds it still, and cannot."""
        where = urlsplit(self._link.url)
        connected = socket.create_connection((str(where.hostname), int(where.port or 0)), TELL_SECONDS)
        if not self._link.serves(now=True):
            connected.close()
            raise ConnectionResetError(self._link.url)
        return connected


async def _closed(client: Any) -> None:
    with suppress(Exception):  # it is given up
        async with asyncio.timeout(1.0):
            await client.__aexit__(None, None, None)
