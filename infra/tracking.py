"""What a run tells the outside: metrics, sample completions and pictures, in MLflow and in a file beside the run.

The local file comes first: a step's metrics are on disk before MLflow is asked. Whatever MLflow could not take is sent
again later, so a server that is away costs neither data nor the run. Sending twice is harmless, because MLflow keeps
one copy of a point with the same (metric, step, time, value) and the local file holds all four.
"""

import json
import logging
import math
import os
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from infra.interrupts import put_off
from infra.metric_log import MetricLine, MetricLog, plain

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

logger = logging.getLogger(__name__)

Status = Literal["FINISHED", "FAILED", "KILLED"]
Item = TypeVar("Item")

ENVIRONMENT = {  # must stand before mlflow is imported; what the user has set wins
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
PAUSE_SECONDS = 5.0  # least pause after a failed attempt to reach MLflow
PAUSE_RATIO = 10  # and at least this many times what the attempt took, so that an outage costs a run a tenth at most
SYSTEM_METRICS_SECONDS = 10
BATCH_METRICS, BATCH_PARAMS, PARAM_LENGTH = 1000, 100, 6000  # MLflow's limits
TABLES_SHOWN = 100  # the tag that makes MLflow show a file as a table holds 8000 characters
SAMPLES_TAG = "mlflow.loggedArtifacts"


class TrackingConfig(BaseModel):
    """Where a run's metrics go."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    uri: str | None = Field(
        None, description="MLflow tracking URI; default: $MLFLOW_TRACKING_URI, else a SQLite file under the home"
    )
    experiment: str | None = Field(None, description="MLflow experiment; default: the name of the problem set")
    samples_every: int = Field(10, ge=1, description="a table of sample completions every so many steps")
    system_metrics: bool = Field(True, description="log processor, memory, disk and network use")


class TrackingError(ValueError):
    """MLflow cannot take a new run: the message names the URI and what to do."""


def tracking_uri(config: TrackingConfig) -> str | None:
    """The MLflow that was asked for; None for the file under the home."""
    return config.uri or os.environ.get("MLFLOW_TRACKING_URI") or None


@dataclass(frozen=True)
class Page:
    """How to look at a run."""

    command: str | None  # the shell command that serves the page; None where a server already does
    url: str


def open_run(
    config: TrackingConfig,
    *,
    home: Path,
    experiment: str,
    run_name: str,
    run_id: str | None,
    params: Mapping[str, Any],
    local: Path | None = None,
) -> "Tracker":
    """Create an MLflow run, or continue `run_id`; a run that MLflow no longer knows is created again from `local`.

    `params` may be nested: names are joined with dots. `experiment` is used where the config names none. `local` is the
    run's metrics.jsonl; without it nothing outlives this process while MLflow is away.
    Raises TrackingError when a new run cannot be created. A continued run goes on without MLflow and catches up later.
    """
    return Tracker(config, home.resolve(), config.experiment or experiment, run_name, run_id, params, local)


class Tracker:
    """One run's outlet; a context manager that ends the run as FINISHED, FAILED or KILLED. Safe to share by threads."""

    def __init__(
        self,
        config: TrackingConfig,
        home: Path,
        experiment: str,
        run_name: str,
        run_id: str | None,
        params: Mapping[str, Any],
        local: Path | None,
    ) -> None:
        self.run_id = run_id
        self.experiment_id: str | None = None
        self._config = config
        self._home = home
        self._experiment = experiment
        self._run_name = run_name
        self._params = dict(_flatten(params))
        self._log = MetricLog(local)
        self._uri = tracking_uri(config) or f"sqlite:///{home / 'mlflow.db'}"
        self._lock = threading.RLock()
        self._client: MlflowClient | None = None  # set once the run is known to be there
        self._monitor: SystemMetricsMonitor | None = None
        self._backlog: list[MetricLine] = []
        self._uploads: dict[str, Callable[[MlflowClient, str], None]] = {}  # by artifact path, the newest of each
        self._tables: list[dict[str, str]] = []
        self._status: Status | None = None
        self._away = False
        self._next_attempt = 0.0
        home.mkdir(parents=True, exist_ok=True)
        failure = self._deliver()
        if failure is not None and run_id is None:
            raise TrackingError(
                f"tracking.uri {_masked(self._uri)}: no MLflow run could be created ({failure}); "
                "start that server or leave tracking.uri out to write to a file under the home"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish("FINISHED")
        else:  # Ctrl-C, SIGTERM and cancellation arrive as exceptions that are no Exception
            self.finish("FAILED" if issubclass(kind, Exception) else "KILLED")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log metrics at `step`, the policy version; as `MetricLog.append` leaves out what is there already.

        A value that is not finite is kept locally as "nan", "inf" or "-inf" and is a gap in MLflow's curves, where an
        infinity would flatten all other values.
        Raises ValueError for a name that MLflow would refuse.
        """
        with self._lock:
            line = self._log.append(step, metrics)
            if line is not None:
                self._backlog.append(line)
                self._deliver_when_due()

    def last_step(self, metric: str | None = None) -> int | None:
        """The last step logged, of one metric or of any; None when there is none."""
        with self._lock:
            return self._log.last.get(metric) if metric is not None else max(self._log.last.values(), default=None)

    def samples_due(self, step: int) -> bool:
        """Whether this step's completions belong into a table."""
        return step % self._config.samples_every == 0

    def log_samples(self, step: int, rows: Sequence[Mapping[str, str | float]]) -> None:
        """Log a table of completions that MLflow's page shows as a table; columns are those of the first row."""
        columns = list(rows[0]) if rows else []
        table = {"columns": columns, "data": [[plain(row[column]) for column in columns] for row in rows]}
        path = f"samples/{step:06d}.json"

        def upload(client: "MlflowClient", run_id: str) -> None:
            client.log_text(run_id, json.dumps(table, ensure_ascii=False), path)
            entry = {"path": path, "type": "table"}
            self._tables = [*(shown for shown in self._tables if shown != entry), entry][-TABLES_SHOWN:]
            client.set_tag(run_id, SAMPLES_TAG, json.dumps(self._tables))

        self._upload(path, upload)

    def log_picture(self, path: Path) -> None:
        """Log an image; one of the same name is replaced. Raises FileNotFoundError."""
        self.log_file(path, "pictures")

    def log_file(self, path: Path, folder: str = "") -> None:
        """Log a file as an artifact in `folder`; one of the same name is replaced. Raises FileNotFoundError."""
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file to log")

        def upload(client: "MlflowClient", run_id: str) -> None:
            if path.is_file():  # it may be gone by the time that MLflow is back
                client.log_artifact(run_id, str(path), folder or None)

        self._upload(f"{folder}/{path.name}", upload)

    def finish(self, status: Status) -> None:
        """Send what is left and end the run in MLflow; later calls change nothing."""
        with self._lock:
            if self._status is not None:
                return
            self._status = status
            self._stop_monitor()
            self._deliver()

    def page(self, port: int = 5000) -> Page:
        """The page of this run. The command serves it from the home on `port`."""
        tail = f"/#/experiments/{self.experiment_id}/runs/{self.run_id}"
        if self._is_served:
            return Page(None, _masked(self._uri.rstrip("/")) + tail)
        store = shlex.quote(self._uri)
        return Page(
            f"mlflow server --backend-store-uri {store} --workers 1 --port {port}", f"http://127.0.0.1:{port}{tail}"
        )

    @property
    def _is_served(self) -> bool:
        """Whether a server does the writing; else this process does it."""
        return self._uri.startswith(("http://", "https://"))

    def _upload(self, path: str, upload: Callable[["MlflowClient", str], None]) -> None:
        with self._lock:
            self._uploads[path] = upload
            self._deliver_when_due()

    def _deliver_when_due(self) -> None:
        if time.monotonic() >= self._next_attempt:
            self._deliver()

    def _deliver(self) -> str | None:
        """Bring MLflow up to date; returns what went wrong, which is also said once per outage."""
        from_mlflow = _import_mlflow()
        started = time.monotonic()
        try:
            # cut off inside a transaction, the database would stay locked, for this process too
            with _quiet_retries() if self._is_served else put_off():
                self._send(from_mlflow)
        except (from_mlflow.exceptions.MlflowException, OSError) as error:
            ended = time.monotonic()
            self._next_attempt = ended + max(PAUSE_SECONDS, PAUSE_RATIO * (ended - started))
            failure = _masked(str(error).strip().partition("\n")[0])[:300]
            if not self._away and self.run_id is not None:
                kept = self._log.path or "memory"
                logger.warning(
                    "MLflow at %s does not answer, metrics stay in %s: %s", _masked(self._uri), kept, failure
                )
            self._away = True
            return failure
        if self._away:  # the monitor's thread ends at its first failure
            self._away = False
            self._stop_monitor()
        if self._monitor is None and self._config.system_metrics and self._status is None:
            self._start_monitor()
        return None

    def _send(self, mlflow: Any) -> None:
        if self._client is None:
            client = mlflow.MlflowClient(tracking_uri=self._uri)
            self._attach(client)
            self._client = client
        client, run_id = self._client, self.run_id
        assert client is not None
        assert run_id is not None
        points = [
            mlflow.entities.Metric(name, value if math.isfinite(value) else math.nan, line.time, line.step)
            for line in self._backlog
            for name, value in line.metrics.items()
        ]
        for batch in _batches(points, BATCH_METRICS):
            client.log_batch(run_id, metrics=batch, synchronous=True)
        self._backlog.clear()
        for path in list(self._uploads):
            self._uploads[path](client, run_id)
            del self._uploads[path]
        if self._status is not None:
            client.set_terminated(run_id, self._status)

    def _attach(self, client: "MlflowClient") -> None:
        """Find or create the run and note what MLflow lacks of it."""
        run = _find_run(client, self.run_id)
        if run is None:
            if self.run_id is not None:
                logger.warning("MLflow at %s no longer knows run %s: created again", _masked(self._uri), self.run_id)
            run = client.create_run(self._find_experiment(client), run_name=self._run_name)
            self.run_id = run.info.run_id
        else:
            client.update_run(run.info.run_id, status="RUNNING")
        self.experiment_id = run.info.experiment_id
        self._tables = json.loads(run.data.tags.get(SAMPLES_TAG, "[]"))
        self._send_params(client, run)
        if self._log.path is not None:
            have = {metric.key: metric.step for metric in run.data.to_proto().metrics}
            lacking = (
                MetricLine(line.step, line.time, {k: v for k, v in line.metrics.items() if line.step > have.get(k, -1)})
                for line in self._log.lines()
            )
            self._backlog = [line for line in lacking if line.metrics]

    def _find_experiment(self, client: "MlflowClient") -> str:
        found = client.get_experiment_by_name(self._experiment)
        if found is None:
            # a server decides itself where artifacts go; MLflow's default without one is the working directory
            folder = None if self._is_served else (self._home / "mlartifacts").as_uri()
            return str(client.create_experiment(self._experiment, artifact_location=folder))
        if found.lifecycle_stage == "deleted":
            client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def _send_params(self, client: "MlflowClient", run: "Run") -> None:
        """MLflow's params never change: what a continued run has different goes into tags."""
        from mlflow.entities import Param, RunTag

        known = run.data.params
        new = [Param(name, value) for name, value in self._params.items() if name not in known]
        for batch in _batches(new, BATCH_PARAMS):
            client.log_batch(run.info.run_id, params=batch, synchronous=True)
        changed = [RunTag(f"resumed.{k}", v) for k, v in self._params.items() if known.get(k, v) != v]
        for tags in _batches(changed, BATCH_PARAMS):
            client.log_batch(run.info.run_id, tags=tags, synchronous=True)

    def _start_monitor(self) -> None:
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        self._monitor = SystemMetricsMonitor(  # type: ignore[no-untyped-call]
            self.run_id, sampling_interval=SYSTEM_METRICS_SECONDS, resume_logging=True, tracking_uri=self._uri
        )
        self._monitor.start()  # type: ignore[no-untyped-call]

    def _stop_monitor(self) -> None:
        if self._monitor is not None and not self._away:  # its own attempts would hold up the end by minutes
            self._monitor.finish()  # type: ignore[no-untyped-call]
        self._monitor = None


def _import_mlflow() -> Any:
    """MLflow, imported when it is first needed: it takes seconds, and `rlvf --help` must not."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import mlflow

    for name in ("mlflow", "alembic"):  # the migrations of a new SQLite file would fill the screen
        if logging.getLogger(name).level < logging.WARNING:
            logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("mlflow.system_metrics").setLevel(logging.CRITICAL)  # an outage is said once, by us
    return mlflow


def _find_run(client: "MlflowClient", run_id: str | None) -> "Run | None":
    from mlflow.exceptions import MlflowException

    if run_id is None:
        return None
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise
    if run.info.lifecycle_stage == "deleted":
        client.restore_run(run_id)
    return run


@contextmanager
def _quiet_retries() -> Iterator[None]:
    """Keeps the HTTP library from writing a line for each retry to a server that is away."""
    retries = logging.getLogger("urllib3.connectionpool")
    level = retries.level
    # logging holds its one lock meanwhile, and Python 3.11 does not give it back if it is interrupted
    with put_off():
        retries.setLevel(logging.ERROR)
    try:
        yield
    finally:
        with put_off():
            retries.setLevel(level)


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        name = prefix + re.sub(r"[^\w.\- /]", "_", str(key))
        if isinstance(value, BaseModel):
            value = value.model_dump(mode="json")
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{name}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            yield name, _masked(text)[:PARAM_LENGTH]


def _batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _masked(text: str) -> str:
    """Hides user:password@ in addresses."""
    return re.sub(r"://[^/@\s]+:[^/@\s]+@", "://***@", text)
