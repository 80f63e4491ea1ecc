"""Which workers get no more leases in a run, because too many of theirs failed, and why."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from infra.cluster.placement import ANSWER_SECONDS, Offer, PlacementConfig
from infra.cluster.source import source_digest

if TYPE_CHECKING:
    from distributed import Client

LIMIT = 3  # failed leases of one worker before it gets no more
FORGIVING = 16  # right ones in a row after which one that failed counts no longer
AUDITS = 2  # audits that found it wrong
EXCLUDED = ["rlvf", "excluded"]  # the scheduler's metadata: the run, and why each worker gets nothing, by its address
LONGEST = 300  # characters of an error's words in a line
_Part = tuple[str, tuple[str, ...]]  # a worker's address, and the tags of a call


class Exclusions:
    """Safe to use from several threads at once. A worker that was started again has another address, and is new."""

    def __init__(self, placement: PlacementConfig, say: Callable[[str], None], own: bool = False) -> None:
        """`say` is called with a line for people; `own` says that this process started the workers itself."""
        self._placement = placement
        self._own = own
        self._say = say
        self._refused: Counter[str] = Counter()  # results that were not what was asked for, by the worker's address
        self._failed: Counter[_Part] = Counter()  # calls that raised
        self._last: dict[_Part, str] = {}  # what the last of them raised
        self._right: Counter[_Part] = Counter()  # leases since then
        self._wrong: Counter[str] = Counter()  # audits that found a worker wrong, by its address
        self._watched: set[str] = set()  # names of workers that no audit has found right since one found them wrong
        self._barred: set[str] = set()  # names of those that were excluded by audits, until one finds them right
        self._why: dict[str, tuple[str, str]] = {}  # name of each worker that gets nothing any more, and the reason
        self._strangers: set[str] = set()  # addresses of workers that run another source, which was said
        self._lock = threading.Lock()

    def refuse(self, call: str, worker: Offer, why: str) -> None:
        """Count a refused result of this worker, and say it; the count is of all calls."""
        with self._lock:
            self._refused[worker.address] += 1
            count = self._refused[worker.address]
        self._say(f"{worker.name} returned for {call} what was not asked for: {why}; it is done again")
        if count == LIMIT:
            self._exclude(worker, f"{LIMIT} of its results were refused, the last of {call}: {why}")
            self._say(f"{worker.name} gets no more leases in this run: {LIMIT} of its results were refused")

    def found_wrong(self, worker: Offer, why: str, right: Offer) -> None:
        """Count an audit that found this worker wrong and the other `right`, and say it. One that was excluded so, and
        started again, is excluded by the first."""
        self.found_right(right)
        with self._lock:
            self._wrong[worker.address] += AUDITS if worker.name in self._barred else 1
            out = self._wrong[worker.address] >= AUDITS
            self._watched.add(worker.name)
            if out:
                self._barred.add(worker.name)
        self._say(f"{worker.name} was found wrong by an audit: {why}")
        if out and worker.address not in self._why:
            self._exclude(worker, why)
            self._say(
                f"{worker.name} gets no more leases in this run: audits have found it wrong; look at its memory and "
                "its versions of packages, then start it again"
            )

    def found_right(self, worker: Offer) -> None:
        """An audit has found this worker right."""
        with self._lock:
            if worker.name in self._watched and self._wrong[worker.address] < AUDITS:
                self._watched.discard(worker.name)
                self._barred.discard(worker.name)

    def is_watched(self, worker: Offer) -> bool:
        """Whether an audit has found a worker of this name wrong, and none has found it right since."""
        return worker.name in self._watched

    def is_distrusted(self, worker: Offer) -> bool:
        """Whether this worker gets nothing any more, so that what it has made is made again."""
        return self._refused[worker.address] >= LIMIT or self._wrong[worker.address] >= AUDITS

    @property
    def distrusted(self) -> dict[str, tuple[str, str]]:
        """Name and reason of each worker that gets nothing any more, by its address."""
        with self._lock:
            return dict(self._why)

    def _exclude(self, worker: Offer, why: str) -> None:
        with self._lock:
            self._why[worker.address] = worker.name, why

    def fail(self, call: str, worker: Offer, error: Exception) -> None:
        """Count an error of this worker in `call`, and say it; the count is of all calls with the same tags."""
        part, what = self._part(call, worker), _words(error)
        with self._lock:
            self._failed[part] += 1
            count, before = self._failed[part], self._last.get(part)
            self._last[part], self._right[part] = what, 0
        if count == LIMIT:
            self._say(f"{worker.name}: {what}; it gets no more such leases in this run: {LIMIT} of them failed")
        elif what != before:
            self._say(f"{worker.name}: {what}; another worker does this lease of {call}")

    def worked(self, call: str, worker: Offer) -> None:
        """A lease of this worker was right: a run of days does not add up a moment's faults."""
        part = self._part(call, worker)
        with self._lock:
            if not 0 < self._failed[part] < LIMIT:
                return
            self._right[part] += 1
            if self._right[part] == FORGIVING:
                self._failed[part], self._right[part] = self._failed[part] - 1, 0

    def leave_out(self, call: str, worker: Offer, error: Exception) -> None:
        """Exclude a worker that failed a probe of `call`, which others passed, from all calls with the same tags."""
        part, what = self._part(call, worker), _words(error)
        with self._lock:
            self._failed[part], self._last[part] = LIMIT, what
        self._say(f"{worker.name}: {what}; it gets no such leases in this run")

    def forgive(self, call: str, addresses: Iterable[str]) -> None:
        """Uncount an error of each of these workers: no worker has done the item, whose fault it may have been."""
        with self._lock:
            self._failed.subtract((address, self._placement.tags(call)) for address in addresses)

    def excluded(self, call: str, worker: Offer) -> bool:
        """Whether this worker gets no more leases of `call`."""
        return self.is_distrusted(worker) or self._failed[self._part(call, worker)] >= LIMIT

    def is_stranger(self, worker: Offer) -> bool:
        """Whether this worker runs another source of rlvf than this process, and so gets nothing; said once. A worker
        of this process does: it was started again after its files were edited, and a run survives a worker's death."""
        if worker.source in ("", source_digest()):
            return False
        with self._lock:
            new = worker.address not in self._strangers
            self._strangers.add(worker.address)
        if new and self._own:
            self._say(
                f"{worker.name} was started again and runs rlvf as its files are now ({worker.source}); they were "
                f"edited since this run was started ({source_digest()})"
            )
        elif new:
            self._say(
                f"{worker.name} gets nothing in this run: it runs another source of rlvf ({worker.source}, here "
                f"{source_digest()}); install the same commit there and start it again; where files were edited here "
                "since the run was started, start that again with --resume"
            )
        return not self._own

    def reasons(self, call: str, workers: list[Offer]) -> str:
        """Why workers are excluded, in words; empty where none is."""
        refused = [worker.name for worker in workers if self._refused[worker.address] >= LIMIT]
        wrong = [worker.name for worker in workers if self._wrong[worker.address] >= AUDITS]
        failed = [
            f"{worker.name}: {self._last[self._part(call, worker)]}"
            for worker in workers
            if self._failed[self._part(call, worker)] >= LIMIT
        ]
        strangers = [worker.name for worker in workers if self.is_stranger(worker)]
        reasons = []
        if strangers:
            reasons.append(f"because they run another source of rlvf: {', '.join(strangers)}")
        if refused:
            reasons.append(f"because what they returned was refused: {', '.join(refused)}")
        if wrong:
            reasons.append(f"because audits have found them wrong: {', '.join(wrong)}")
        if failed:
            reasons.append(f"because their leases failed: {', '.join(failed)}")
        return "; ".join(reasons)

    def _part(self, call: str, worker: Offer) -> _Part:
        return worker.address, self._placement.tags(call)


def announce(client: "Client", run: str, reasons: Mapping[str, str]) -> None:
    """Tell the scheduler, for `rlvf status`, which workers get nothing in a run, and why, by their addresses."""
    told: Any = client.scheduler
    with suppress(OSError):  # it is gone, and all addresses with it, or hangs
        if client.status == "running":
            value = {"run": run, "workers": dict(reasons)}
            client.sync(told.set_metadata, keys=EXCLUDED, value=value, callback_timeout=ANSWER_SECONDS)  # type: ignore[no-untyped-call]


def _words(error: Exception) -> str:
    words = " ".join(str(error).split())
    short = words if len(words) <= LONGEST else f"{words[:LONGEST]}…"
    return f"{type(error).__name__}: {short}" if short else type(error).__name__
