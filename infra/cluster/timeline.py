"""The timeline of each worker: the calls it ran, its waits for weights, the leases that died with it.

A worker measures how long a call took; the moment it came back is by the caller's clock, so that clocks need not agree.
`timeline.jsonl` holds a span a line, and a line {"session": time} where a session of the run begins.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from pydantic import Field, TypeAdapter

from infra import disk
from infra.cluster.placement import worker_name

T = TypeVar("T")
KEPT_BYTES = 8 * 2**20  # of the file: some 80,000 calls; of a longer run the newest half or more
UNWRITTEN = 10_000  # spans in memory that are kept until they are written


Moment = Annotated[float, Field(ge=0, lt=2**37)]  # seconds since 1970, within the calendar's range


@dataclass(frozen=True)
class Span:
    """One call on one worker. Times are seconds since 1970, by the clock of the flow."""

    worker: str  # its name
    call: str  # "generate", "train", ...
    start: Moment
    end: Moment
    loading: Moment = 0.0  # seconds in which the call waited for weights, nearly all at its start
    fetched: Annotated[int, Field(ge=0)] = 0  # bytes of weights that its worker has read since the call before
    downloading: Moment = 0.0  # seconds to read them, and
    applying: Moment = 0.0  # to apply them, be it beside other work
    computing: Moment = 0.0  # seconds of cores that its process has used, and
    delayed: Moment = 0.0  # that its thread was ready and had none (0 where not Linux), waits for weights left out
    tokens: Annotated[int, Field(ge=0)] = 0  # that it has drawn, or read; 0: not known
    lost: bool = False  # the worker died or vanished in it
    dropped: bool = False  # its result came second, or was refused: it counts for nothing


@dataclass(frozen=True)
class _Session:
    """The begin of a session of the run."""

    session: float


_LINE = TypeAdapter(_Session | Span)


# -- on the worker


@dataclass
class Fetched:
    """The cost of bringing weights."""

    bytes: int = 0  # read from the storage
    download_seconds: float = 0.0
    apply_seconds: float = 0.0

    def add(self, other: "Fetched") -> None:
        self.bytes += other.bytes
        self.download_seconds += other.download_seconds
        self.apply_seconds += other.apply_seconds


@dataclass
class Loading:
    """How long a call has waited for weights so far, and what its worker has fetched."""

    seconds: float = 0.0
    fetched: Fetched = field(default_factory=Fetched)
    computing: float = 0.0  # seconds of cores in them, see Span
    delayed: float = 0.0


@dataclass(frozen=True)
class Measured(Generic[T]):
    """A call's result, and how long it took."""

    result: T
    worker: str  # its name
    address: str
    seconds: float
    loading: Loading
    computing: float = 0.0  # see Span
    delayed: float = 0.0
    leaving: bool = False  # its worker was asked to leave by then

    def span(self, call: str, end: float, tokens: int = 0, *, dropped: bool = False) -> Span:
        """The span of the call, which came back at `end` with so many tokens."""
        of = self.loading.fetched
        return Span(
            self.worker,
            call,
            end - self.seconds,
            end,
            loading=self.loading.seconds,
            fetched=of.bytes,
            downloading=of.download_seconds,
            applying=of.apply_seconds,
            computing=self.computing,
            delayed=self.delayed,
            tokens=tokens,
            dropped=dropped,
        )


_loading = ContextVar[Loading]("_loading")  # of the call that is run


def measured(call: bytes) -> Measured[Any]:
    """Make a call on a worker: its function and arguments, as Dask pickles them."""
    from distributed import get_worker  # here, because it takes half a second to import, and records are read without
    from distributed.protocol import pickle

    from infra.cluster.cancellation import leaving_check

    function, args = pickle.loads(call)  # type: ignore[no-untyped-call]
    loading = Loading()
    _loading.set(loading)
    began, computed, waited = time.perf_counter(), time.process_time(), _without_core()
    result = function(*args)
    worker = get_worker()
    return Measured(
        result,
        worker_name(worker.name),
        worker.address,
        time.perf_counter() - began,
        loading,
        max(0.0, time.process_time() - computed - loading.computing),
        max(0.0, _without_core() - waited - loading.delayed),
        leaving_check()(),
    )


def _without_core() -> float:
    """Seconds that this thread has been ready and had no core, ever; 0 where the system does not tell."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_bytes().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


@contextmanager
def waiting_for_weights(take_fetched: Callable[[], Fetched]) -> Iterator[None]:
    """Count the time inside as waiting for weights, and as fetched what `take_fetched` gives at its end, of the call
    that is run."""
    loading, began = _loading.get(Loading()), time.perf_counter()
    computed, waited = time.process_time(), _without_core()
    try:
        yield
        loading.fetched.add(take_fetched())
    finally:
        loading.seconds += time.perf_counter() - began
        loading.computing += time.process_time() - computed
        loading.delayed += _without_core() - waited


# -- at the caller


class Timeline:
    """Unwritten spans; safe to share by threads."""

    def __init__(self) -> None:
        self._spans: deque[Span] = deque(maxlen=UNWRITTEN)

    def add(self, span: Span) -> None:
        self._spans.append(span)

    def take(self) -> list[Span]:
        """Remove and return the spans so far."""
        taken = []
        while self._spans:
            taken.append(self._spans.popleft())
        return taken


def begin_session(path: Path) -> None:
    """Append to the file that a session of the run begins now; makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _append(path, [{"session": round(time.time(), 3)}])


def write_spans(path: Path, spans: Sequence[Span]) -> None:
    """Append to the file, which stays below `KEPT_BYTES`."""
    if spans:
        _append(path, [_plain(span) for span in spans])


def read_sessions(text: str) -> list[list[Span]]:
    """The spans of each session, oldest first; damaged and foreign lines are left out."""
    sessions: list[list[Span]] = []
    for line in text.splitlines():
        try:
            found = _LINE.validate_json(line)
        except ValueError:
            continue
        if isinstance(found, _Session):
            sessions.append([])
            continue
        if not sessions:
            sessions.append([])
        sessions[-1].append(found)
    return [session for session in sessions if session]


def _plain(span: Span) -> dict[str, Any]:
    rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(span).items()}
    return {name: value for name, value in rounded.items() if value}


def _append(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    with disk.naming(path), path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
        size = file.tell()
    if size > KEPT_BYTES:
        data = path.read_bytes()
        disk.write_file(path, data[data.index(b"\n", len(data) // 2) + 1 :])
