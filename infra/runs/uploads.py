"""Files on their way to MLflow. One that cannot be stored holds up nothing but itself."""

import logging
import time
from collections.abc import Callable

from infra.runs.outage import why
from infra.storage.faults import unreachable

logger = logging.getLogger(__name__)

Upload = Callable[[], None]  # stores a file; it raises whatever the client of its storage does
Add = Callable[[str, Upload], None]
NAMED = 5  # in a line about what is lacking


class Uploads:
    """Those that are left, by artifact path, the newest of each."""

    def __init__(self, uri: str, is_served: bool, pause: Callable[[float], float]) -> None:
        """`uri` is for people to read. `pause`: seconds until the next attempt, after one that failed and took so
        many."""
        self._uri, self._is_served, self._pause = uri, is_served, pause
        self._left: dict[str, Upload] = {}
        self._said = False
        self._next_attempt = 0.0

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
        self._next_attempt = ended + self._pause(ended - started)
        if last or not self._said:
            self._said = True
            more = f" and {len(self._left) - NAMED} more" if len(self._left) > NAMED else ""
            named = ", ".join(list(self._left)[:NAMED]) + more
            logger.warning("MLflow at %s lacks files of this run (%s): %s", self._uri, named, failure)
