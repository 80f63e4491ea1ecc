"""A run's metrics, sample completions and pictures, in MLflow and in a file beside the run.

The local file comes first: a step's metrics are on disk before MLflow is asked. Whatever MLflow could not take is sent
again later, so a server that is away costs neither data nor the run. Sending twice is harmless, because MLflow keeps
one copy of a point with the same (metric, step, time, value) and the local file holds all four.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, Field

from infra.interrupts import put_off
from infra.runs.metric_log import MetricLine, MetricLog, plain
from infra.runs.mlflow_run import MlflowRun, Owner, Page, Status, home_database, import_mlflow
from infra.runs.outage import AGAIN_SECONDS, NOT_OURS, Upload, Uploads, lacks, may_be_back, pause_after, why
from infra.runs.tables import table_path
from infra.security.secrets import masked
from infra.sqlite import file_of, report_corruption

if TYPE_CHECKING:
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

logger = logging.getLogger(__name__)

SYSTEM_METRICS_SECONDS = 10
REMEDY = "move it aside; a run that goes on by --resume brings all its points into a new one, from its metrics.jsonl"


class TrackingConfig(BaseModel):
    """Where a run's metrics go."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    uri: str | None = Field(
        None, description="MLflow tracking URI; null takes $MLFLOW_TRACKING_URI, else a SQLite file under the home"
    )
    experiment: str | None = Field(None, description="MLflow experiment; null takes the name of the problem set")
    samples_every: int = Field(10, ge=1, description="steps between two tables of sample completions")
    rollouts_every: int = Field(
        1, ge=0, description="keep all completions of every N-th step in the run's rollouts/; 0 keeps none"
    )
    report: bool = Field(True, description="write report.html at the end of a run")
    system_metrics: bool = Field(True, description="log processor, memory, disk and network use")


class TrackingError(ValueError):
    """MLflow cannot take a new run: the message names the URI and what to do."""


def tracking_uri(config: TrackingConfig) -> str | None:
    """The MLflow that was asked for; None for the file under the home."""
    return config.uri or os.environ.get("MLFLOW_TRACKING_URI") or None


class Tracker:
    """Tracks one run; a context manager that ends the run as FINISHED, FAILED or KILLED. Safe to share by threads."""

    def __init__(
        self,
        config: TrackingConfig,
        *,
        home: Path,
        experiment: str,
        run_name: str,
        run_id: str | None,
        params: Mapping[str, Any],
        owner: Owner,
        local: Path | None = None,
        check: Callable[[], None] = lambda: None,
        guest: bool = False,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Creates an MLflow run, or continues `run_id`; a run that MLflow no longer knows, or that is not `owner`'s, is
        created again from `local`, the run's metrics.jsonl: without that nothing outlives this process while MLflow is
        away.

        `experiment` is used where the config names none; names of nested `params` are joined with dots. `check` is
        called before anything is written, and what it raises ends the tracking: the run is another's. Where it
        `is_over`, as somebody has ended it, no server is waited for. A `guest` adds to `run_id`, also points of a step
        that has such points, and leaves its status to whoever trains it.

        Raises TrackingError when a new run cannot be created. A continued run goes on without MLflow and catches up.
        """
        home = home.resolve()
        self._check, self._is_over = check, is_over
        self._config = config
        self._log = MetricLog(local, again=guest)
        self._guest = guest
        uri = tracking_uri(config) or home_database(home)
        self._run = MlflowRun(uri, home, config.experiment or experiment, run_name, run_id, params, owner, guest)
        self._lock = threading.RLock()
        self._monitor: SystemMetricsMonitor | None = None
        self._backlog: list[MetricLine] = []
        self._have: dict[str, int] = {}  # the last step of each metric in MLflow
        self._uploads = Uploads(masked(uri), self._run.is_served)
        self._status: Status | None = None
        self.told = False  # whether MLflow has all, once this has finished
        self._away_since: float | None = None
        self._next_attempt = 0.0
        home.mkdir(parents=True, exist_ok=True)
        with report_corruption(file_of(uri), REMEDY):
            failure = self._deliver()
        if failure is not None and run_id is None:
            remedy = "start that server or leave tracking.uri out to write to a file under the home"
            if (file := file_of(uri)) is not None:
                remedy = f"move {file} away, and a new one is made; one of an older MLflow: mlflow db upgrade {uri}"
            raise TrackingError(f"tracking.uri {masked(uri)}: no MLflow run could be created ({failure}); {remedy}")

    @property
    def run_id(self) -> str | None:
        """Of the MLflow run."""
        return self._run.run_id

    @property
    def experiment_id(self) -> str | None:
        return self._run.experiment_id

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Ctrl-C, SIGTERM and cancellation arrive as exceptions that are no Exception
        self.finish("FINISHED" if kind is None else "FAILED" if issubclass(kind, Exception) else "KILLED")

    def log(self, step: int, metrics: Mapping[str, float], plan: str = "") -> None:
        """Log metrics at `step`, the policy version; as `MetricLog.append` leaves out what is there already. `plan`
        is kept beside them, see `MetricLine`.

        A value that is not finite is kept locally as "nan", "inf" or "-inf" and is a gap in MLflow's curves, where an
        infinity would flatten all other values.
        Raises ValueError for a name that MLflow would refuse.
        """
        with self._lock:
            self._check()
            line = self._log.append(step, metrics, plan)
            if line is not None:
                self._backlog.append(line)
                self._deliver_when_due()

    def go_back(self, step: int) -> bool:
        """Forget what was logged of later steps, which are made again; whether there was any.

        MLflow takes no point back, so that the run there is followed by a new one, which gets all points up to `step`
        and the tables; the old one is deleted (MLflow keeps it in its trash).
        """
        with self._lock:
            self._check()
            there = any(last > step for name, last in self._have.items() if not name.startswith(NOT_OURS))
            if not self._log.cut(step) and not there:
                return False
            self._stop_monitor()
            self._backlog = self._log.lines()
            self._run.begin_anew(step)
            self._have = {}
            self._deliver()
            return True

    def last_step(self, metric: str | None = None) -> int | None:
        """The last step logged, of one metric or of any; None when there is none."""
        with self._lock:
            return self._log.last.get(metric) if metric is not None else max(self._log.last.values(), default=None)

    def names(self) -> frozenset[str]:
        """The metrics that were logged, by earlier sessions too."""
        with self._lock:
            return frozenset(self._log.last)

    def samples_due(self, step: int) -> bool:
        """Whether this step's completions are logged as a table."""
        return step % self._config.samples_every == 0

    def log_samples(self, step: int, rows: Sequence[Mapping[str, str | float]]) -> None:
        """Log a table of completions that MLflow's page shows as a table; columns are those of the first row."""
        columns = list(rows[0]) if rows else []
        table = {"columns": columns, "data": [[plain(row[column]) for column in columns] for row in rows]}
        path = table_path(step)
        self._upload(path, lambda: self._run.show_table(path, table))

    def log_picture(self, path: Path) -> None:
        """Log an image; one of the same name is replaced. Raises FileNotFoundError."""
        self.log_file(path, "pictures")

    def log_file(self, path: Path, folder: str = "") -> None:
        """Log a file as an artifact in `folder`; one of the same name is replaced. Raises FileNotFoundError."""
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file to log")
        self._upload(f"{folder}/{path.name}".lstrip("/"), lambda: self._run.store_file(path, folder))

    def tag(self, name: str, value: str) -> None:
        """Tag the run; a tag of the same name is replaced."""

        def send() -> None:
            client, run_id = self._run.attached
            client.set_tag(run_id, name, value)

        self._upload(f"tag {name}", send)

    def finish(self, status: Status) -> None:
        """Send what is left and end the run in MLflow; later calls change nothing. A run that has FINISHED waits for a
        server that is away, until that is so for BACK_SECONDS or it `is_over`."""
        with self._lock:
            if self._status is not None:
                return
            self._status = status
            self._stop_monitor()
            self._check()
            failure = self._deliver()
            if status == "FINISHED" and self._run.is_served and may_be_back(self._away_since):
                logger.warning("waiting for MLflow at %s, until it has been away for a minute", masked(self._run.uri))
                while may_be_back(self._away_since) and not self._is_over():
                    time.sleep(AGAIN_SECONDS)
                    failure = self._deliver()
            self.told = failure is None and not self._uploads.left
            if failure is not None and not self._guest:
                logger.warning("MLflow at %s %s", masked(self._run.uri), lacks(self._have, self._log.last))

    def page(self, port: int = 5000) -> Page:
        """The page of this run. The command serves it from the home on `port`."""
        return self._run.page(port)

    def _upload(self, path: str, upload: Upload) -> None:
        with self._lock:
            self._uploads.add(path, upload)
            self._deliver_when_due()

    def _deliver_when_due(self) -> None:
        if time.monotonic() >= self._next_attempt:
            self._deliver()

    def _deliver(self) -> str | None:
        """Bring MLflow up to date; returns what went wrong, which is also said once per outage."""
        from_mlflow = import_mlflow()
        started = time.monotonic()
        try:
            # cut off inside a transaction, the database would stay locked, for this process too
            with nullcontext() if self._run.is_served else put_off():
                self._send()
        except (from_mlflow.exceptions.MlflowException, OSError) as error:
            ended = time.monotonic()
            self._next_attempt = ended + pause_after(ended - started)
            failure = why(error, self._run.is_served)
            if self._away_since is None and self.run_id is not None:
                words = "MLflow at %s takes nothing, metrics stay in %s: %s"
                logger.warning(words, masked(self._run.uri), self._log.path or "memory", failure)
            self._away_since = started if self._away_since is None else self._away_since
            return failure
        if self._away_since is not None:  # the monitor's thread ends at its first failure
            self._away_since = None
            self._stop_monitor()
        if self._monitor is None and self._config.system_metrics and self._status is None:
            self._start_monitor()
        return None

    def _send(self) -> None:
        have = self._run.attach(self._uploads.add)
        if have is not None:
            self._have = dict(have)
            if self._log.path is not None:
                self._backlog = self._log.lines()
        lacking = [self._lacking(line) for line in self._backlog]
        self._run.log(lacking)
        self._backlog.clear()
        for line in lacking:
            self._have.update(dict.fromkeys(line.metrics, line.step))
        self._uploads.send(last=self._status is not None)
        if self._status is not None:
            self._run.end(self._status)

    def _lacking(self, line: MetricLine) -> MetricLine:
        """The metrics of the line that MLflow lacks: a step that is done again, also on a machine with another log, is
        logged once. An evaluation's are sent again, as another one may be of the same step: MLflow keeps one of points
        that are the same. All of a guest's are sent: it may measure a step twice."""
        if self._guest:
            return line
        beyond = line.step + 1 if line.plan else line.step
        metrics = {k: v for k, v in line.metrics.items() if beyond > self._have.get(k, -1)}
        return MetricLine(line.step, line.time, metrics)

    def _start_monitor(self) -> None:
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        self._monitor = SystemMetricsMonitor(  # type: ignore[no-untyped-call]
            self.run_id, sampling_interval=SYSTEM_METRICS_SECONDS, resume_logging=True, tracking_uri=self._run.uri
        )
        self._monitor.start()  # type: ignore[no-untyped-call]

    def _stop_monitor(self) -> None:
        if self._monitor is not None and self._away_since is None:  # its own attempts would hold up the end by minutes
            self._monitor.finish()  # type: ignore[no-untyped-call]
        self._monitor = None
