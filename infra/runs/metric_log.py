"""The local file of a run's metrics: one JSON object a line, on disk before MLflow gets it.

{"step": 3, "time": 1790000000000, "reward/mean": 0.5, "loss/policy": "nan"}
"""

import json
import logging
import math
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, TypeAdapter
from pydantic_core import from_json

from infra.disk import naming, write_file

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _When:
    """The fields of every line."""

    step: Annotated[int, Field(ge=0, lt=2**53)]
    time: Annotated[int, Field(ge=0, lt=2**53)]
    plan: str = ""


_KEYS = ("step", "time", "plan")
_WHEN, _VALUES = TypeAdapter(_When), TypeAdapter(dict[str, float])


@dataclass(frozen=True)
class MetricLine:
    """What was logged in one call."""

    step: int  # the policy version
    time: int  # milliseconds since 1970
    metrics: Mapping[str, float]
    plan: str = ""  # digest of what was evaluated; not sent to MLflow

    def dumps(self) -> str:
        values = {name: plain(value) for name, value in self.metrics.items()}
        return json.dumps({"step": self.step, "time": self.time} | ({"plan": self.plan} if self.plan else {}) | values)

    @classmethod
    def loads(cls, text: bytes) -> Self:
        """Raises ValueError for what `dumps` did not write."""
        when = _WHEN.validate_json(text)
        values = {name: value for name, value in from_json(text).items() if name not in _KEYS}
        return cls(when.step, when.time, _VALUES.validate_python(values), when.plan)


class MetricLog:
    """Appends to the file, and knows the last step of each metric; without a path it keeps no file."""

    def __init__(self, path: Path | None, again: bool = False) -> None:
        """`again`: a step may be logged more than once. Makes the folder, here alone: where it is away later, nothing
        is written in its place."""
        self.path = path
        self._again = again
        self.last: dict[str, int] = {}
        self._logged: dict[tuple[str, str], int] = {}  # the same by plan and metric
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            _cut_torn_line(path)
        for line in self.lines():
            self._note(line)

    def append(self, step: int, metrics: Mapping[str, float], plan: str = "") -> MetricLine | None:
        """Write the metrics that are not there yet; None when all are.

        The steps of one metric, and of one `plan` where it is an evaluation's, ascend, but for `again`: one that
        already has this step or a later one stays as it is, so that a resumed run may log a step again. Raises
        ValueError for a name that MLflow would refuse.
        """
        for name in metrics:
            if not re.fullmatch(r"\w[\w.\- ]*(/\w[\w.\- ]*)*", name) or name in _KEYS:
                raise ValueError(f"metric name {name!r}: use letters, digits, '_', '-', '.' and '/' between words")
        fresh = {k: float(v) for k, v in metrics.items() if self._again or self._logged.get((plan, k), -1) < step}
        if not fresh:
            return None
        line = MetricLine(step, time.time_ns() // 1_000_000, fresh, plan)
        if self.path is not None:
            with naming(self.path), self.path.open("a", encoding="utf-8") as file:
                file.write(line.dumps() + "\n")
                file.flush()
                os.fsync(file.fileno())
        self._note(line)
        return line

    def cut(self, step: int) -> bool:
        """Remove what was logged of later steps; whether there was any."""
        lines = self.lines()
        kept = [line for line in lines if line.step <= step]
        if self.path is None or len(kept) == len(lines):
            return False
        write_file(self.path, "".join(line.dumps() + "\n" for line in kept).encode())
        self.last.clear()
        self._logged.clear()
        for line in kept:
            self._note(line)
        return True

    def lines(self) -> list[MetricLine]:
        return read_metrics(self.path) if self.path is not None else []

    def _note(self, line: MetricLine) -> None:
        for name in line.metrics:
            self.last[name] = max(line.step, self.last.get(name, line.step))
            of_plan = line.plan, name
            self._logged[of_plan] = max(line.step, self._logged.get(of_plan, line.step))


def read_metrics(path: Path) -> list[MetricLine]:
    """The metrics logged so far, oldest first; [] for a file that does not exist.

    A last line without its newline was cut by a kill: nobody was told that it is there, and it is left out. Any other
    line that cannot be read is left out with a warning.
    """
    return parse_metrics(path.read_bytes(), str(path)) if path.exists() else []


def parse_metrics(content: bytes, name: str) -> list[MetricLine]:
    """As `read_metrics`, of a file's content."""
    lines, damaged = [], []
    for number, text in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            lines.append(MetricLine.loads(text))
        except ValueError:
            damaged.append(number)
    if damaged:
        _say_once(name, damaged[0], len(damaged))
    return lines


@cache
def _say_once(name: str, first: int, count: int) -> None:
    """Warn of lines that are left out, once: a run reads the file often."""
    others = f", nor are {count - 1:,} more" if count > 1 else ""
    logger.warning("%s: line %d is not a line of metrics%s: left out", name, first, others)


def plain(value: str | float) -> str | float:
    """The value as JSON can say it: "nan", "inf" and "-inf" are strings."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _cut_torn_line(path: Path) -> None:
    """Drop what follows the last newline, so that the next line starts on its own."""
    if path.exists():
        whole = path.read_bytes().rfind(b"\n") + 1
        if whole < path.stat().st_size:
            os.truncate(path, whole)
