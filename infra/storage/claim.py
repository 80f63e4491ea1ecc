"""The claims of a run's lock, as they lie in storage: who holds the run, and since when. See `infra.storage.lock`."""

import getpass
import os
import re
import secrets
import socket
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from infra.process_identity import ProcessIdentity
from infra.storage import place

CLAIM = re.compile(r"\d{8}(-[0-9a-f]{16})?\.json")
SILENT = timedelta(minutes=5)  # since a heartbeat, a hundred of them: as long as clocks may differ
_Moment = Annotated[float, Field(ge=0, lt=2**37)]  # seconds since 1970, that a calendar has


@dataclass(frozen=True)
class Claim:
    """The process that holds a run's lock, or wants to."""

    user: str
    host: str
    machine: str  # this and the next two are those of a `ProcessIdentity`
    pid: Annotated[int, Field(ge=1, le=2**31 - 1)]
    started: _Moment
    since: _Moment  # of the claim
    state: Literal["claimed", "held", "released"] = "claimed"
    beat: Annotated[int, Field(ge=0)] = 0
    mark: str = ""  # random: no other claim, ever, is this one
    flow_run: str = ""  # the id of Prefect's flow run that trains it; of a killed one before, until that is marked

    @classmethod
    def of_this_process(cls) -> "Claim":
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a container may have no name for it
            user = str(os.getuid())
        own = ProcessIdentity.of_this()
        mark = secrets.token_hex(8)
        return cls(user, socket.gethostname(), own.machine, own.pid, own.started, time.time(), mark=mark)

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended, as far as that can be seen from here."""
        return ProcessIdentity(self.machine, self.pid, self.started).is_gone

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since).astimezone()
        return f"{self.user}@{self.host} (process {self.pid}) since {since:%Y-%m-%d %H:%M:%S %Z}"


_CLAIM = TypeAdapter(Claim)


def read_claim(content: bytes) -> Claim | None:
    """The claim in a file; None where it is damaged or half written."""
    try:
        return _CLAIM.validate_json(content)
    except ValueError:
        return None


@dataclass(frozen=True)
class Seen:
    """A claim's file."""

    uri: str
    epoch: int
    content: bytes

    @property
    def claim(self) -> Claim | None:
        """None while it is being written, and where it is damaged."""
        return read_claim(self.content)

    @property
    def is_held(self) -> bool:
        return self.claim is not None and self.claim.state == "held"


def claims(run: str) -> list[str]:
    """The names of all claims on a run, the newest epoch's last."""
    return [name for name in place.names(place.join(run, "lock")) if CLAIM.fullmatch(name)]


def of_newest_epoch(run: str) -> list[Seen]:
    """The claims of a run's newest epoch."""
    names = claims(run)
    found = []
    for name in names:
        if name[:8] == names[-1][:8]:
            at = place.join(run, "lock", name)
            content = place.read(at)
            if content is not None:
                found.append(Seen(at, int(name[:8]), content))
    return found


def newest_claim(run: str) -> Seen | None:
    """The claim that holds the run."""
    return min(of_newest_epoch(run), key=lambda seen: (not seen.is_held, seen.uri), default=None)


def holder(run: str) -> Claim | None:
    """Who holds the run now, as far as that is seen without a wait for a heartbeat."""
    seen = newest_claim(run)
    if seen is None or seen.claim is None or not seen.is_held or seen.claim.is_gone:
        return None
    beat = place.modified(seen.uri)
    return seen.claim if beat is not None and datetime.now(UTC) - beat < SILENT else None
