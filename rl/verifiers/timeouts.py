"""Time-outs in a row: is it the verifier that hangs, or one problem on which it does?"""

from collections import Counter
from threading import Lock

from rl.records import Problem

Key = tuple[str, str, str]


class TimeOuts:
    """Those of one verifier since its last answer. Any thread may count."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._row: Counter[Key] = Counter()
        self._lock = Lock()

    @property
    def hangs(self) -> bool:
        """Whether there are `limit` in a row, of which one problem stands for no more than half: none does it alone."""
        with self._lock:
            return sum(min(count, self.limit - self.limit // 2) for count in self._row.values()) >= self.limit

    @property
    def any(self) -> bool:
        """Whether the last completion that was judged took too long."""
        return bool(self._row)

    def of_call(self) -> "OfCall":
        """Those of a call of the verifier, counted here as well."""
        return OfCall(self)

    def count(self, key: Key, timeout: bool, of_call: Counter[Key]) -> None:
        """Count an answer, or none in time, here and in the call."""
        with self._lock:
            if timeout:
                self._row[key] += 1
                of_call[key] += 1
            else:
                self._row.clear()
                of_call.pop(key, None)


class OfCall:
    """Those of each problem in one call, since its last answer."""

    def __init__(self, whole: TimeOuts) -> None:
        self._whole = whole
        self._found: Counter[Key] = Counter()

    def count(self, problem: Problem, timeout: bool) -> None:
        """Count an answer, or none in time."""
        self._whole.count(_key(problem), timeout, self._found)

    def is_hopeless(self, problem: Problem) -> bool:
        """Whether so many of its completions took too long in a row that its further ones are not tried."""
        return self._found[_key(problem)] >= self._whole.limit


def _key(problem: Problem) -> Key:
    return problem.source, problem.prompt, problem.target
