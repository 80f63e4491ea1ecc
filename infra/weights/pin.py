"""Pins: versions of a run that somebody reads for longer than generators do, such as an evaluation; the trainer's
pruning spares them.

A pin is a small file under `<run>/pins/`, named by the version, into which its reader writes a heartbeat every
`BEAT_SECONDS`. A trainer that sees one unchanged for `DEAD_SECONDS` removes it: its reader was killed. Clocks are never
compared.
"""

import logging
import re
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

from infra.security.printable import printable
from infra.security.secrets import masked
from infra.storage import place
from infra.storage.faults import is_forbidden
from infra.storage.manifest import NotThere
from infra.weights.version import PolicyVersion, newest_version

logger = logging.getLogger(__name__)
BEAT_SECONDS = 10.0
DEAD_SECONDS = 120.0
END_SECONDS = 30.0  # for a heartbeat under way
LEFT = timedelta(days=1)  # since its last heartbeat: a pin that was left where nobody trains any more
_NAME = re.compile(r"v(\d+)-[0-9a-f]{16}")


@contextmanager
def newest_pinned(run_uri: str) -> Iterator[PolicyVersion]:
    """The newest published version of a run, which stays until the context ends, or its process. Where this process may
    only read, as of a backup, there is no pin, and a line says so.

    Raises NotThere where the run has published none, and what the storage raises.
    """
    try:
        _sweep(run_uri)
        version, pin = _pin_newest(run_uri)
    except OSError as error:
        if not is_forbidden(error):
            raise
        said = "%s cannot be written: if it is trained meanwhile, what is read of it may be removed"
        logger.warning(said, printable(masked(run_uri)))
        if (newest := newest_version(run_uri)) is None:
            raise NotThere(f"{run_uri} has published no weights yet") from error
        yield newest
        return
    over = threading.Event()
    beating = threading.Thread(target=_beat, args=(run_uri, pin, over), name="pin", daemon=True)
    beating.start()
    try:
        yield version
    finally:
        over.set()
        beating.join(END_SECONDS)  # a heartbeat after the removal would leave the file
        with suppress(Exception):  # the storage is away: the trainer removes it
            place.remove_file(pin)


def _pin_newest(run_uri: str) -> tuple[PolicyVersion, str]:
    """The version and the URI of its pin. A version is taken if it is still the newest, or the one before that, when
    its pin is there: every trainer keeps these two, and the pruning after a newer one finds the pin."""
    while True:
        version = newest_version(run_uri)
        if version is None:
            raise NotThere(f"{run_uri} has published no weights yet")
        pin = place.join(_pins(run_uri), f"v{version.step}-{secrets.token_hex(8)}")
        try:
            _write(pin, 0)
            newest = newest_version(run_uri)
            if newest is None or newest.step <= version.step + 1:
                return version, pin
        except BaseException:
            with suppress(OSError):  # as what it could not write
                place.remove_file(pin)
            raise
        place.remove_file(pin)


def _beat(run_uri: str, pin: str, over: threading.Event) -> None:
    beat = 0
    while not over.wait(BEAT_SECONDS):
        beat += 1
        with suppress(Exception):  # the storage is away: the next one tells
            if place.subfolders(place.join(run_uri, "weights")):  # else the run was removed
                _write(pin, beat)


class Pins:
    """The pins on a run, as its trainer sees them."""

    def __init__(self, run_uri: str) -> None:
        self._uri = _pins(run_uri)
        self._seen: dict[str, tuple[bytes, float]] = {}  # by name: the content, and when it was seen first

    def steps(self) -> set[int]:
        """The versions that are pinned now; pins of dead readers are removed. Raises what the storage raises."""
        now = time.monotonic()
        seen = {}
        for name in place.names(self._uri):
            uri = place.join(self._uri, name)
            content = place.read(uri)
            if content is None:  # its reader is done
                continue
            before, since = self._seen.get(name, (content, now))
            if before != content:
                since = now
            if now - since > DEAD_SECONDS:
                place.remove_file(uri)
            else:
                seen[name] = content, since
        self._seen = seen
        return {int(named[1]) for name in seen if (named := _NAME.fullmatch(name))}


def _pins(run_uri: str) -> str:
    return place.join(run_uri, "pins")


def _write(pin: str, beat: int) -> None:
    place.write_text(pin, f"{beat}\n")


def _sweep(run_uri: str) -> None:
    """Remove the pins that dead readers have left where nobody trains any more. One that is alive comes back with its
    next heartbeat, whatever this machine's clock says."""
    for name in place.names(_pins(run_uri)):
        uri = place.join(_pins(run_uri), name)
        when = place.modified(uri)
        if when is not None and datetime.now(UTC) - when > LEFT:
            place.remove_file(uri)
