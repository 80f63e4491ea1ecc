"""One run in MLflow: found or created, its points, params, tables and files, and its page."""

import json
import logging
import math
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel

from infra.interrupts import put_off
from infra.runs.artifacts import Artifacts
from infra.runs.description import TAG as DESCRIPTION_TAG
from infra.runs.description import description
from infra.runs.metric_log import MetricLine
from infra.runs.outage import Add
from infra.runs.tables import Tables
from infra.security.printable import printable
from infra.security.secrets import masked

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

logger = logging.getLogger(__name__)

Status = Literal["FINISHED", "FAILED", "KILLED"]
Item = TypeVar("Item")

ENVIRONMENT = {  # must stand before mlflow is imported; what the user has set wins
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # stdout is for results, and it would show a password
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
BATCH_METRICS, BATCH_PARAMS, PARAM_LENGTH = 1000, 100, 6000  # MLflow's limits
# without it the page of 3.17 opens on traces of language model applications, whatever the tags of an experiment say
WORKFLOW = "?workflowType=machine_learning"
OWNER_TAG = "rlvf.run"
FOLLOWS_TAG = "rlvf.follows"  # the id of the run that this one replaced


@dataclass(frozen=True)
class Owner:
    """Whose an MLflow run is, by a tag of it: whoever can write a run's folder may name any MLflow run in it."""

    tag: str
    also: frozenset[str | None] = frozenset()  # tags that are taken for it, None for no tag


@dataclass(frozen=True)
class Page:
    """How to look at a run."""

    command: str | None  # the shell command that serves the page; None where a server already does
    url: str

    def artifact(self, path: str) -> str:
        """The address of one of its artifacts."""
        return self.url.replace(WORKFLOW, f"/artifacts/{path}{WORKFLOW}")


class MlflowRun:
    """A run at a tracking URI. Its methods raise MlflowException and OSError where MLflow is away."""

    def __init__(
        self,
        uri: str,
        home: Path,
        experiment: str,
        name: str,
        run_id: str | None,
        params: Mapping[str, Any],
        owner: Owner,
        guest: bool,
    ) -> None:
        """A `guest` adds points to a run that may be going on elsewhere: its status stays as it is."""
        self.uri = uri
        self._guest = guest
        self.run_id = run_id
        self.experiment_id: str | None = None
        self._home = home
        self._experiment = experiment
        self._name = name
        self._params = dict(_flatten(masked(params)))
        self._owner = owner
        self._client: MlflowClient | None = None  # set once the run is known to be there
        self._artifacts: Artifacts | None = None  # with it
        self._tables: Tables | None = None  # with it
        self._replaced: tuple[str, int] | None = None  # the run that this one follows, and the step up to which

    @property
    def is_served(self) -> bool:
        """Whether a server does the writing; else this process does it."""
        return self.uri.startswith(("http://", "https://"))

    def page(self, port: int) -> Page:
        """Its page; the command serves it, on `port` if that is free."""
        tail = f"/#/experiments/{self.experiment_id}/runs/{self.run_id}{WORKFLOW}"
        uri = masked(self.uri)
        if self.is_served:
            return Page(None, uri.rstrip("/") + tail)
        elsewhere = "" if self.uri == home_database(self._home) else f"MLFLOW_BACKEND_STORE_URI={shlex.quote(uri)} "
        return Page(f"{elsewhere}rlvf up", f"http://127.0.0.1:{port}{tail}")

    def attach(self, add: Add) -> Mapping[str, int] | None:
        """Find or create the run; the last step of each metric that MLflow has. None if that was done before. The
        tables of the run that this one follows are given to `add`: one that cannot be copied holds up nothing."""
        if self._client is not None:
            return None
        mlflow = import_mlflow()
        if self.is_served:
            from infra.runs.mlflow_auth import adopt_mlflow  # here: it imports MLflow

            adopt_mlflow(self._home, self.uri)
        client = mlflow.MlflowClient(tracking_uri=self.uri)
        run = self._find_run(client, self.run_id)
        if run is None:
            tags = {OWNER_TAG: self._owner.tag} | ({FOLLOWS_TAG: self._replaced[0]} if self._replaced else {})
            run = client.create_run(self._find_experiment(client), run_name=self._name, tags=tags)
            self.run_id = run.info.run_id
            if text := description(self._params, run.info.experiment_id, run.info.run_id):
                client.set_tag(run.info.run_id, DESCRIPTION_TAG, text)
            self._guest = False  # the run is its own
        elif not self._guest:
            client.set_tag(run.info.run_id, OWNER_TAG, self._owner.tag)  # it may have been moved
            client.update_run(run.info.run_id, status="RUNNING")
        self._send_params(client, run)
        files = self._files(client, run)
        tables = Tables(client, run, files)
        if self._replaced is not None:
            self._follow(client, run, tables, *self._replaced, add)
            self._replaced = None
        self.experiment_id = run.info.experiment_id
        self._client, self._artifacts, self._tables = client, files, tables
        return {metric.key: metric.step for metric in run.data.to_proto().metrics}

    def begin_anew(self, step: int) -> None:
        """Follow this run with a new one, which gets its tables up to `step`, at the next `attach`."""
        if self.run_id is not None:
            self._replaced = self.run_id, step
        self.run_id, self._client = None, None

    def _files(self, client: "MlflowClient", run: "Run") -> Artifacts:
        return Artifacts(client, run, self.is_served, self._home if self.uri == home_database(self._home) else None)

    def _follow(self, client: "MlflowClient", run: "Run", tables: Tables, replaced: str, step: int, add: Add) -> None:
        """Have the tables up to `step` copied; delete run `replaced`, and those that killed sessions began for it."""
        if (old := self._find_run(client, replaced)) is None:
            return
        source = Tables(client, old, self._files(client, old))
        for path in source.paths(step):
            add(path, partial(tables.copy, path, source))
        same = f"tags.`{FOLLOWS_TAG}` = '{replaced}' AND tags.`{OWNER_TAG}` = '{self._owner.tag}'"
        for each in (*client.search_runs([run.info.experiment_id], same), old):
            if each.info.run_id != run.info.run_id:
                if each.info.status == "RUNNING":  # in MLflow's trash it would look alive
                    client.set_terminated(each.info.run_id, "KILLED")
                client.delete_run(each.info.run_id)

    def log(self, lines: Iterable[MetricLine]) -> None:
        """Send points; MLflow keeps one of those that are the same."""
        from mlflow.entities import Metric

        points = [
            Metric(name, value if math.isfinite(value) else math.nan, line.time, line.step)
            for line in lines
            for name, value in line.metrics.items()
        ]
        client, run_id = self.attached
        for batch in _batches(points, BATCH_METRICS):
            client.log_batch(run_id, metrics=batch, synchronous=True)

    def show_table(self, path: str, table: Mapping[str, Any]) -> None:
        """Store a table that the page shows as one."""
        assert self._tables is not None
        self._tables.show(path, table)

    def store_file(self, path: Path, folder: str) -> None:
        """Store a file as an artifact, unless it is gone by now."""
        assert self._artifacts is not None
        if path.is_file():
            self._artifacts.store(path, folder)

    def end(self, status: Status) -> None:
        client, run_id = self.attached
        if not self._guest:
            client.set_terminated(run_id, status)

    @property
    def attached(self) -> "tuple[MlflowClient, str]":
        assert self._client is not None
        assert self.run_id is not None
        return self._client, self.run_id

    def _find_run(self, client: "MlflowClient", run_id: str | None) -> "Run | None":
        """The run of that id, brought back if it was deleted; None where MLflow knows none, or it is not the owner's:
        then it stays as it is, and a line says so."""
        from mlflow.exceptions import MlflowException

        if run_id is None:
            return None
        try:
            run = client.get_run(run_id)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                logger.warning("MLflow at %s no longer knows run %s: created again", masked(self.uri), run_id)
                return None
            raise
        if (tag := run.data.tags.get(OWNER_TAG)) != self._owner.tag and tag not in self._owner.also:
            words = "MLflow at %s has run %s not as that of %s: it stays as it is, and a new one is created"
            logger.warning(words, masked(self.uri), printable(run_id), printable(self._name))
            return None
        if run.info.lifecycle_stage == "deleted":
            client.restore_run(run_id)
        return run

    def _find_experiment(self, client: "MlflowClient") -> str:
        found = client.get_experiment_by_name(self._experiment)
        if found is None:
            # a server decides itself where artifacts go; MLflow's default without one is the working directory
            folder = None if self.is_served else (self._home / "mlartifacts").as_uri()
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


def home_database(home: Path) -> str:
    """The tracking URI of runs that name none, and what the home's MLflow server serves."""
    return f"sqlite:///{home / 'mlflow.db'}"


def import_mlflow() -> Any:
    """MLflow, imported when it is first needed: it takes seconds, and `rlvf --help` must not."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import mlflow

    _quieten()
    return mlflow


@cache
def _quieten() -> None:
    """Once: logging holds its one lock meanwhile, and Python 3.11 does not release it if it is interrupted."""
    with put_off():
        for name in ("mlflow", "alembic"):  # the migrations of a new SQLite file would fill the screen
            if logging.getLogger(name).level < logging.WARNING:
                logging.getLogger(name).setLevel(logging.WARNING)
        for name in (
            "mlflow.system_metrics",
            "mlflow.store.db.utils",
            "urllib3.connectionpool",  # a line for each retry
        ):  # `Tracker` says once that MLflow is away, or the disk full
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        name = prefix + re.sub(r"[^\w.\- /]", "_", str(key))
        if isinstance(value, BaseModel):
            value = value.model_dump(mode="json")
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{name}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            yield name, masked(text)[:PARAM_LENGTH]


def _batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    return (items[start : start + size] for start in range(0, len(items), size))
