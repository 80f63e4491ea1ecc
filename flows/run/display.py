"""What a person sees while a run goes on: a live bar on a terminal, plain lines in a pipe, both on stderr."""

import io
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import IO, Any, Self, cast

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from infra.security.printable import printable
from infra.security.secrets import masked

LINE_SECONDS = 2.0  # plain step lines come no faster
TELL_SECONDS = 10.0  # nor, in a log elsewhere, than this
PACE_STEPS = 20  # the time left follows the pace of so many steps


class Display:
    """A context manager; every call returns at once, and none fails where stderr is closed."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console(file=cast("IO[str]", _Forgiving(sys.stderr)))
        self._clock = clock
        self._live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("[bold]{task.description}", markup=True),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[count]}", markup=False),
            TimeElapsedColumn(),
            _CutAtItsEnd("{task.fields[figures]}", markup=False, table_column=Column()),
            console=self._console,
            transient=True,
            redirect_stdout=False,  # stdout is for results
            disable=not self._live,
        )
        self._task = self._progress.add_task("", total=None, start=False, visible=False, count="", figures="")
        self._stage = ""
        self._stage_began = 0.0
        self._total: int | None = None
        self._paces: deque[tuple[float, int]] = deque(maxlen=PACE_STEPS + 1)  # (when, step)
        self._unsaid: str | None = None  # the newest step, not yet written as a line
        self._last_line = float("-inf")
        self._listener: Callable[[str], None] = lambda _: None
        self._untold: str | None = None  # the newest step that the listener has not got
        self._last_told = float("-inf")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_stage()
        self._progress.stop()

    @contextmanager
    def heard_by(self, listener: Callable[[str], None]) -> Iterator[None]:
        """Meanwhile the listener, who must return at once, gets what is said, each stage, and a step now and then."""
        before, self._listener = self._listener, listener
        try:
            yield
        finally:
            self._listener = before

    def stage(self, name: str) -> None:
        """A new stage begins: its steps are counted anew."""
        self._end_stage()
        self._listener(name)
        self._stage, self._stage_began, self._total = name, self._clock(), None
        self._paces.clear()
        self._last_line = self._last_told = float("-inf")
        if self._live:
            self._progress.reset(
                self._task,
                start=True,
                total=None,
                description=escape(printable(name)),
                visible=True,
                count="",
                figures="",
            )
        else:
            self._line(name)

    def total(self, steps: int, done: int = 0) -> None:
        """This stage ends after step `steps`; a resumed one has `done` of them behind it."""
        self._total = steps
        self._paces.append((self._clock(), done))
        self._progress.update(self._task, total=steps, completed=done, count=f"{done}/{steps}")

    def step(self, step: int, *, note: str = "", **figures: float) -> None:
        """`step` steps are done. A figure named `x_per_second` is shown as x/s."""
        self._paces.append((self._clock(), step))
        count = f"{step}/{self._total}" if self._total is not None else str(step)
        left = self._left(step)
        shown = "  ".join(
            [_figure(name, value) for name, value in figures.items()]
            + ([f"{_duration(left)} left"] if left is not None else [])
            + ([note] if note else [])
        )
        if self._live:
            self._progress.update(self._task, completed=step, count=count, figures=printable(shown), refresh=True)
        self._unsaid = self._untold = f"{self._stage}  step {count}  {shown}".strip()
        if not self._live and self._clock() - self._last_line >= LINE_SECONDS:
            self._say_unsaid()
        if self._clock() - self._last_told >= TELL_SECONDS:
            self._tell_untold()

    def say(self, text: str) -> None:
        """A line of its own, above the bar, without secrets."""
        text = masked(text)
        if not self._live:
            self._say_unsaid()
        self._line(text)
        self._listener(text)

    def _left(self, step: int) -> float | None:
        """Seconds until the last step at the pace of the last ones; None while there is no pace."""
        (then, first), (now, last) = self._paces[0], self._paces[-1]
        if self._total is None or last <= first or step >= self._total:
            return None
        return (now - then) / (last - first) * (self._total - step)

    def _end_stage(self) -> None:
        """On a terminal the bar is about to go: its last state stays as a line."""
        if self._live and self._stage:
            self._unsaid = f"{self._unsaid or self._stage}  ({_duration(self._clock() - self._stage_began)})"
        self._say_unsaid()
        self._tell_untold()

    def _say_unsaid(self) -> None:
        if self._unsaid is not None:
            self._line(self._unsaid)
            self._unsaid, self._last_line = None, self._clock()

    def _tell_untold(self) -> None:
        if self._untold is not None:
            self._listener(self._untold)
            self._untold, self._last_told = None, self._clock()

    def _line(self, text: str) -> None:
        self._console.print(Text(printable(text)), soft_wrap=True)
        self._console.file.flush()


class _CutAtItsEnd(TextColumn):
    """A column that gives way where a terminal is too narrow: rich takes room from those first that may wrap, and this
    one stays in one line nevertheless."""

    def render(self, task: Task) -> Text:
        text = super().render(task)
        text.no_wrap, text.overflow = True, "ellipsis"
        return text


class _Forgiving(io.TextIOBase):
    """A text stream that drops what its reader no longer takes: `rlvf train 2>&1 | head` goes on training."""

    def __init__(self, stream: IO[str] | None) -> None:
        self._stream = stream  # None in a process without a stderr

    def write(self, text: str) -> int:
        self._try("write", text)
        return len(text)

    def flush(self) -> None:
        self._try("flush")

    def isatty(self) -> bool:
        return bool(self._try("isatty"))

    def fileno(self) -> int:
        if self._stream is None:
            raise OSError("no stream")
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self._stream, "encoding", None) or "utf-8"

    def _try(self, method: str, *arguments: str) -> Any:
        if self._stream is None:
            return None
        try:
            return getattr(self._stream, method)(*arguments)
        except (OSError, ValueError):  # a broken pipe; a closed file
            self._stream = None
            return None


def _figure(name: str, value: float) -> str:
    if name.endswith("_per_second"):
        return f"{value:,.0f} {name.removesuffix('_per_second').replace('_', ' ')}/s"
    return f"{name.replace('_', ' ')} {value:.3g}"


def _duration(seconds: float) -> str:
    """45s, 3m05s, 2h10m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
