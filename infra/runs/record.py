"""A run's record: the small files that say how it went, beside its log and under its URI.

They are written on the machine that trains. Where the run lies elsewhere they are copied there now and then, and what
has come since at every step, so that a report can be made, and the run resumed, on any machine.
"""

import logging
import math
import platform
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from infra.cluster import timeline
from infra.cluster.machine import installed
from infra.cluster.timeline import Moment, Span
from infra.runs.metric_log import MetricLine, MetricLog, parse_metrics
from infra.storage import place
from infra.storage.typed import DamagedError, parse_typed

logger = logging.getLogger(__name__)

TAIL = "tail"  # folder of what was added to the files since they were copied
METRICS, TIMELINE, ABOUT, RESULT = "metrics.jsonl", "timeline.jsonl", "about.json", "result.json"
EVALUATIONS = "evaluations"  # folder of the results of `rlvf eval`
LARGEST = 1e100  # of a figure
EVERY_STEP = ("reward/mean", "sft/loss", "dpo/loss", "reward_model/loss")  # a run logs one of these at each step
FORMER = {"groups/generated": "groups/drawn"}  # what older versions called a metric
PACKAGES = "rlvf torch transformers safetensors numpy distributed prefect mlflow fsspec s3fs".split()


class _About(BaseModel):
    """Facts of the last session, and of the run."""

    run: str = ""
    status: str = ""
    why: str = ""  # why it failed
    began: Moment = 0.0
    ended: Moment = 0.0
    sessions: int = 1
    links: dict[str, tuple[str, str]] = {}  # address and how to see it, by what is there
    versions: dict[str, str] = {}
    workers: dict[str, list[str]] = {}  # tags
    memory_gb: dict[str, float] = {}  # of their devices
    machines: dict[str, tuple[str, int]] = {}  # which one each runs on, and its cores
    parameters: tuple[int, int] = (0, 0)  # of the policy that are trained, and all; 0 where it is not told
    dtype: str = ""  # of its arithmetic
    changes: list[str] = []  # of what it is trained with, since it began
    excluded: dict[str, str] = {}  # why workers got no more leases, by name
    lost: dict[str, int] = {}  # calls that died with their workers
    held_out: dict[str, int] = {}  # problems of each set that it is evaluated on


@dataclass(frozen=True)
class Record:
    """The record of a run; what was never written is empty."""

    metrics: tuple[MetricLine, ...]  # oldest first
    sessions: tuple[tuple[Span, ...], ...]  # what the workers did, by session of the run
    about: Mapping[str, Any] = field(default_factory=dict)  # of its last session: status, versions, links, ...

    def curve(self, metric: str) -> dict[int, float]:
        """A metric's values by step, of an evaluation those of its newest plan; NaN, a gap, where one is not finite, or
        so large that sums of it are not."""
        lines = [line for line in self.metrics if metric in line.metrics]
        found = {line.step: line.metrics[metric] for line in lines if line.plan == lines[-1].plan}
        older = self.curve(FORMER[metric]) if metric in FORMER else {}
        return older | {step: value if abs(value) <= LARGEST else math.nan for step, value in sorted(found.items())}

    def has_other_plans(self, metric: str) -> bool:
        """Whether `curve` leaves values out: of other problems, other samples or another verifier."""
        return len({line.plan for line in self.metrics if metric in line.metrics}) > 1

    @property
    def steps(self) -> list[int]:
        """The steps that were logged."""
        curves = (self.curve(metric) for metric in EVERY_STEP)
        return list(next(filter(None, curves), {}))


def read_record(run_uri: str, folder: Path) -> Record:
    """The record of the run at `run_uri`; `folder` is where this machine keeps it, if it does."""
    metrics, spans = _newer(run_uri, folder, METRICS), _newer(run_uri, folder, TIMELINE)
    return Record(
        metrics=tuple(parse_metrics(metrics, place.join(run_uri, METRICS))),
        sessions=tuple(tuple(session) for session in timeline.read_sessions(spans.decode("utf-8", "replace"))),
        about=read_about(run_uri, folder),
    )


def read_about(run_uri: str, folder: Path) -> Mapping[str, Any]:
    """The facts of the record alone."""
    return _about(_newer(run_uri, folder, ABOUT), place.join(run_uri, ABOUT))


def last_lines(run_uri: str, folder: Path, metrics: Iterable[str]) -> dict[str, MetricLine]:
    """The last line of each of these metrics that was logged; no other line is parsed."""
    content = _newer(run_uri, folder, METRICS)
    found = {metric: _last_line(content, metric) for metric in metrics}
    return {metric: line for metric, line in found.items() if line is not None}


def _last_line(content: bytes, metric: str) -> MetricLine | None:
    end = content.rfind(b"\n")
    while (at := content.rfind(f'"{metric}": '.encode(), 0, max(0, end))) >= 0:
        begin = content.rfind(b"\n", 0, at) + 1
        with suppress(ValueError):
            return MetricLine.loads(content[begin : content.index(b"\n", at)])
        end = begin - 1
    return None


def last_step(run_uri: str) -> int:
    """The last step that the run's storage has metrics of, 0 if it has none."""
    lines = parse_metrics(_stored(run_uri, METRICS), place.join(run_uri, METRICS))
    return max((line.step for line in lines), default=0)


def send_record(run_uri: str, folder: Path) -> dict[str, int]:
    """Copy the record from this machine to where the run lies; returns the bytes of each file that are there."""
    sent = {}
    if place.local_path(run_uri) is None:
        for name in (METRICS, TIMELINE, ABOUT, RESULT):
            if (folder / name).exists():
                data = (folder / name).read_bytes()
                place.write_bytes(place.join(run_uri, name), data)
                sent[name] = len(data)
    return sent


def send_tail(run_uri: str, folder: Path, sent: Mapping[str, int]) -> None:
    """Copy what was added to the metrics since `send_record` returned `sent`: little enough for every step."""
    if place.local_path(run_uri) is None and (folder / METRICS).exists():
        at = sent.get(METRICS, 0)
        with (folder / METRICS).open("rb") as file:
            file.seek(at)
            place.write_bytes(place.join(run_uri, TAIL, METRICS), b"%d\n" % at + file.read())


def bring_record(run_uri: str, folder: Path) -> None:
    """Copy to this machine what it lacks of the record: another one may have trained the run meanwhile."""
    if place.local_path(run_uri) is None:
        for name in (METRICS, TIMELINE):
            data = _newer(run_uri, folder, name)
            if data:
                place.write_bytes(str(folder / name), data)


def begin_record(run_uri: str, folder: Path) -> None:
    """Remove what this machine has of a run that was removed at the same URI: a new one has no record yet."""
    if place.local_path(run_uri) is None:
        for path in (*folder.glob("*.jsonl"), folder / ABOUT, folder / RESULT):
            path.unlink(missing_ok=True)


def cut_evaluations(run_uri: str, folder: Path, step: int) -> None:
    """Remove what `rlvf eval` has found of versions after `step`, which are made again: with the run, and on this
    machine what it would tell MLflow anew."""
    for name in place.names(place.join(run_uri, EVALUATIONS)):
        if (version := re.match(r"v(\d+)-", name)) and int(version[1]) > step:
            place.remove_file(place.join(run_uri, EVALUATIONS, name))
    for path in folder.glob("eval-*.jsonl"):
        MetricLog(path, again=True).cut(step)


def versions() -> dict[str, str]:
    """The versions of Python, the platform and packages of this process."""
    return {"python": platform.python_version(), "platform": platform.platform(), **installed(PACKAGES)}


def _newer(run_uri: str, folder: Path, name: str) -> bytes:
    """What the storage has, or what this machine has if that goes on from there; b"" where there is none."""
    there = _stored(run_uri, name)
    here = b"" if place.local_path(run_uri) == folder else place.read(str(folder / name)) or b""
    return here if here.startswith(there) else there


def _stored(run_uri: str, name: str) -> bytes:
    there = place.read(place.join(run_uri, name)) or b""
    at, _, tail = (place.read(place.join(run_uri, TAIL, name)) or b"").partition(b"\n")
    if at.isdigit() and int(at) <= len(there):
        there = max(there, there[: int(at)] + tail, key=len)
    return there


def _about(data: bytes, name: str) -> Mapping[str, Any]:
    """The file's content; nothing, with a warning, of a damaged one."""
    try:
        if data:
            return parse_typed(data, _About, name, "what it says is left out").model_dump(exclude_unset=True)
        return {}
    except DamagedError as error:
        logger.warning("%s", error)
        return {}
