"""The claim of a run's lock, as it lies in storage: who holds the run, and since when. See `infra.storage.lock`."""

import getpass
import os
import secrets
import socket
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from infra.process_identity import ProcessIdentity

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
