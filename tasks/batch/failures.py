"""Failures of verifiers, told to a person as soon as they begin and never at every step."""

from collections.abc import Callable
from threading import Lock

from rl.judging import Judgement


class Failures:
    """Says the first failure at once, then when there are ten times as many. Any thread may call it."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._lock = Lock()
        self._seen = self._failed = 0  # completions

    def saw(self, judgement: Judgement) -> None:
        """Count a judgement's failures."""
        messages = [message for row in judgement.messages for message in row]
        failed = [message for message in messages if message]
        with self._lock:
            before, now = self._failed, self._failed + len(failed)
            self._seen, self._failed = self._seen + len(messages), now
            seen = self._seen
        if failed and (before == 0 or len(str(now)) > len(str(before))):
            self._say(f"{now} of {seen} completions could not be judged so far: {failed[0]}")
