"""An MLflow that takes nothing: what a person is told of it, and the files that wait for it."""

import logging
import time
from collections.abc import Callable, Mapping

from infra.security.secrets import masked
from infra.storage.faults import explained, unreachable

logger = logging.getLogger(__name__)

Upload = Callable[[], None]  # stores a file; it raises whatever the client of its storage does
Add = Callable[[str, Upload], None]
NOT_OURS = "system/"  # metrics of MLflow's own, which count their own steps
LENGTH = 300  # characters of an error
PAUSE_SECONDS = 5.0  # least pause after a failed attempt to reach MLflow
PAUSE_RATIO = 10  # and at least this many times what the attempt took, so that an outage costs a run a tenth at most
BACK_SECONDS = 60.0  # within which a server that was started again, or stood still for a moment, is back
AGAIN_SECONDS = 1.0  # between two attempts, at the end of a run
NAMED = 5  # files, in a line about those that are lacking


def why(error: Exception, is_served: bool) -> str:
    """One line for an error of MLflow or of the storage of its files. Where this process writes its database, a full
    disk is named: SQLAlchemy begins with other words."""
    known = None if is_served else explained(error)
    return masked(known or str(error).strip().partition("\n")[0] or type(error).__name__)[:LENGTH]


def lacks(has: Mapping[str, int], logged: Mapping[str, int]) -> str:
    """What MLflow lacks of a run that ends, and the remedy; by the last step of each metric that it ``has``, {} where
    it was not reached in this session, and that was ``logged``."""
    reached = max((step for name, step in has.items() if not name.startswith(NOT_OURS)), default=None)
    last = max(logged.values(), default=0)
    if reached is None:
        there = "was told nothing of this session"
    elif reached < last:
        there = f"has this run up to step {reached} of {last} only"
    else:
        there = "was not told all of the end of this run"
    return f"{there}; `rlvf train --resume RUN` brings the rest"


def pause_after(seconds: float) -> float:
    """Seconds until the next attempt, after one that failed and took so many."""
    return max(PAUSE_SECONDS, PAUSE_RATIO * seconds)


def may_be_back(since: float | None) -> bool:
    """Whether a server that is away since then, by time.monotonic, may be back in a moment. None: it is not away."""
    return since is not None and time.monotonic() < since + BACK_SECONDS


class Uploads:
    """Files on their way to MLflow, by artifact path, the newest of each. One that fails holds up nothing but
    itself."""

    def __init__(self, uri: str, is_served: bool) -> None:
        """`uri` is for people to read."""
        self._uri, self._is_served = uri, is_served
        self._left: dict[str, Upload] = {}
        self._said = False
        self._next_attempt = 0.0

    @property
    def left(self) -> bool:
        """Whether a file is still to be stored."""
        return bool(self._left)

    def add(self, path: str, upload: Upload) -> None:
        """Have `upload` store the file at `path`."""
        self._left[path] = upload

    def send(self, last: bool) -> None:
        """Store what is left. What fails is tried again after a pause, and said once, and again where this is the
        `last` time."""
        started = time.monotonic()
        if started < self._next_attempt and not last:
            return
        failure = None
        for path, upload in list(self._left.items()):
            try:
                upload()
            except Exception as error:  # noqa: BLE001  every store has exceptions of its own
                failure = why(error, self._is_served)
                self._left[path] = self._left.pop(path)  # behind the others
                if self._is_served or unreachable(error):  # it may be away: not a time-out for each
                    break
            else:
                del self._left[path]
        if failure is None:
            self._said = False
            return
        ended = time.monotonic()
        self._next_attempt = ended + pause_after(ended - started)
        if last or not self._said:
            self._said = True
            more = f" and {len(self._left) - NAMED} more" if len(self._left) > NAMED else ""
            named = ", ".join(list(self._left)[:NAMED]) + more
            logger.warning("MLflow at %s lacks files of this run (%s): %s", self._uri, named, failure)
