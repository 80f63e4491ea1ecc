"""Lines that say what a run waits for, when no call has come back for a while, or this process itself waits so long."""

import threading
import time
from collections import defaultdict
from urllib.parse import urlsplit

from infra.cluster.placement import ANSWER_SECONDS, Offer, offers
from infra.dispatch.calls import Awaited, Calls
from infra.hosts import is_loopback

FIRST_SECONDS = 10.0  # of silence before it is said what is waited for
LONGEST_SECONDS = 45.0  # the pause doubles from line to line, up to this: a line at least every minute
USUAL_RATIO = 1.5  # a call is long that takes so many times the longest of late, or LONGEST_SECONDS
NAMED = 4  # workers of a call in a line


class Watch:
    """Says through `calls.say` what is waited for, as long as it runs. Held calls are not waited for."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._say_what_is_awaited, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(2 * ANSWER_SECONDS)

    def _say_what_is_awaited(self) -> None:
        progress, pause, due = 0.0, FIRST_SECONDS, 0.0
        while not self._ended.wait(FIRST_SECONDS / 10):
            now = time.monotonic()
            awaited, lacking = self._calls.awaited, self._calls.lacking.copy()
            own: dict[str, float] = {}  # said even when calls come back meanwhile
            for what, since in self._calls.own.copy().values():
                if now - since >= FIRST_SECONDS:
                    own[what] = min(since, own.get(what, since))
            if not (awaited or lacking or own) or not self._calls.going.is_set():
                continue
            back = self._calls.progress
            called_since = [*lacking.values(), *(each.since for each in awaited.values())]
            began = min([*own.values(), *([max(back, min(called_since))] if called_since else [])])
            if began > progress:
                progress, pause, due = began, FIRST_SECONDS, began + FIRST_SECONDS
            if now >= due and (lacking or own or any(self._is_long(each, now) for each in awaited.values())):
                here = [f"{what} ({now - since:.0f} s)" for what, since in own.items()]
                called = [self.waiting_for(awaited, lacking, now)] if awaited or lacking else []
                line = f"waiting for {'; '.join([*here, *called])}"
                if self._calls.progress <= began:  # not while the scheduler was asked either
                    self._calls.say(f"nothing has come back for {now - began:.0f} s; {line}")
                elif own:
                    self._calls.say(line)
                pause = min(2 * pause, LONGEST_SECONDS)
                due = now + pause

    def _is_long(self, call: Awaited, now: float) -> bool:
        """Whether a call takes longer than others that do the same work."""
        usual = USUAL_RATIO * (self._calls.took.longest(call.work) or 0.0)
        return now - call.since >= min(max(FIRST_SECONDS, usual), LONGEST_SECONDS)

    def waiting_for(self, awaited: dict[str, Awaited], lacking: dict[str, float], now: float) -> str:
        """The calls in words: on which workers, for how long; `lacking` ones have no worker."""
        try:
            there = {offer.address: offer for offer in offers(self._calls.client, ANSWER_SECONDS)}
            where = self._where()
        except (OSError, RuntimeError) as error:  # a TimeoutError too; the client is being closed
            return f"the Dask scheduler, which does not answer ({str(error) or 'no answer in time'})"
        waiting: dict[str, dict[str, str]] = defaultdict(dict)  # by call, then by worker: one that has several, once
        for key, call in sorted(awaited.items(), key=lambda item: item[1].since):
            address = where.get(key) or call.worker
            offer = None if address is None else there.get(address)
            name = address or "a worker" if offer is None else _name(offer)
            why = f", waits for the storage: {offer.waits}" if offer is not None and offer.waits else ""
            waiting[call.name].setdefault(name, f"{name} ({now - call.since:.0f} s{why})")
        for name, since in lacking.items():
            tags = " and ".join(self._calls.placement.tags(name))
            waiting[name][tags] = f"a worker that offers {tags} ({now - since:.0f} s)"
        return "; ".join(
            f"{call} on {', '.join([*on.values()][:NAMED])}"
            + (f" and {len(on) - NAMED} more" if len(on) > NAMED else "")
            for call, on in waiting.items()
        )

    def _where(self) -> dict[str, str]:
        """The address of the worker that has a call, by its key."""
        client = self._calls.client
        scheduler = client.scheduler
        if scheduler is None:
            return {}
        processing = client.sync(scheduler.processing, workers=None, callback_timeout=ANSWER_SECONDS)  # type: ignore[no-untyped-call]
        return {str(key): address for address, keys in processing.items() for key in keys}


def _name(offer: Offer) -> str:
    """A worker and, if it is another's, its machine."""
    host = urlsplit(offer.address).hostname or ""
    return offer.name if not host or is_loopback(host) else f"{offer.name} at {host}"
