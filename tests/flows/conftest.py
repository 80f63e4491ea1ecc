"""What the tests of whole runs share: a home with a Prefect server, one cluster, and a policy that is half right."""

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client, Security

from flows.config import EvalConfig, TrainConfig
from flows.finetune_config import SftConfig
from flows.options.reading import read_config
from flows.run.workplace import IMPORTS
from flows.sft import warm_up_spec
from flows.start.runs import local_folder
from infra.cluster.cluster import local_cluster
from infra.cluster.cluster_config import ClusterConfig
from infra.cluster.placement import offers
from infra.home import rlvf_home
from infra.runs.metric_log import read_metrics
from infra.services import prefect_server as services
from infra.services.prefect_api import PrefectApi
from infra.weights.whole import keep_whole
from tasks.warm_up import warm_up_uri
from tests.processes import MARK, kill_marked, marked, started, until

# what helpers assert says what differs, as in a test
pytest.register_assert_rewrite("tests.flows.accidents", "tests.flows.commands.refusals")

SMALL = {
    "batch.prompts": "4",
    "batch.samples": "4",
    "batch.lease": "2",
    "held_out": "16",
    "sampling.max_tokens": "12",
    "tracking.system_metrics": "false",
    "tracking.report": "false",  # a second each
}
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


@dataclass(frozen=True)
class Command:
    """A running `rlvf`, in a process group of its own."""

    process: subprocess.Popen[str]
    mark: str

    def finish(self, seconds: float = 200.0) -> tuple[int, str, str]:
        """Its exit code, stdout and stderr."""
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out, err

    def signal_group(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)

    def alive(self) -> list[psutil.Process]:
        """The processes that it has started, itself included, that still run."""
        return marked(self.mark)


@dataclass(frozen=True)
class Lab:
    """Where the tests train. Options are dotted, as on the command line."""

    home: Path
    url: str  # of the Prefect API
    auth: str  # user:password of it
    client: Client
    problems: Path
    policy: Path  # Hugging Face layout; also kept as the warm-up of the default configuration
    dask_home: Path  # the home of the process that holds the scheduler
    names: Iterator[int] = field(default_factory=lambda: iter(range(10**6)))

    def new_name(self) -> str:
        return f"run{next(self.names)}"

    @property
    def access(self) -> dict[str, str]:
        """What another process needs in its environment to use the Prefect API."""
        return {"PREFECT_API_URL": self.url, "PREFECT_API_AUTH_STRING": self.auth}

    def api(self, path: str, body: Any = None) -> Any:
        """What the Prefect API answers: a POST with a body, a GET without one."""
        return PrefectApi(self.url, self.auth).ask(path, body, seconds=30)

    def options(self, **changes: str) -> dict[str, str]:
        """Small, on the shared cluster; a double underscore stands for a dot, None takes an option back."""
        shared = {
            "problems": str(self.problems),
            "policy": str(self.policy),
            "cluster.scheduler": self.client.scheduler.address,
        }
        named = {name.replace("__", "."): value for name, value in changes.items()}
        return {name: value for name, value in {**SMALL, **shared, **named}.items() if value is not None}

    @contextmanager
    def prefect(self, home: Path | None = None) -> Iterator[Any]:
        """This process uses the lab's server meanwhile, and its home or another; gives a client of the API."""
        from prefect.client.orchestration import get_client
        from prefect.settings import (
            PREFECT_API_AUTH_STRING,
            PREFECT_API_URL,
            PREFECT_LOGGING_LEVEL,
            PREFECT_LOGGING_TO_API_ENABLED,
            temporary_settings,
        )

        with (
            pytest.MonkeyPatch.context() as patch,
            temporary_settings(
                {
                    PREFECT_API_URL: self.url,
                    PREFECT_API_AUTH_STRING: self.auth,
                    PREFECT_LOGGING_LEVEL: "ERROR",
                    PREFECT_LOGGING_TO_API_ENABLED: False,  # it would still be at it when the server is gone
                }
            ),
            get_client(sync_client=True) as client,
        ):
            patch.setenv("RLVF_HOME", str(home or self.home))
            yield client

    def train(self, resume: str | None = None, home: Path | None = None, **changes: str) -> Any:
        """Run the flow in this process, on the shared cluster."""
        from flows.train import train

        self.settle()
        options = {"run": resume or self.new_name(), **self.options(**changes)}
        with self.prefect(home):
            return train(read_config(TrainConfig, file=None, overrides=options), resume)

    def evaluate(self, **changes: str) -> Any:
        """Run the evaluation flow in this process, on the shared cluster."""
        from flows.evaluate import evaluate_policy

        base = {"sampling.max_tokens": "12", "cluster.scheduler": self.client.scheduler.address}
        options = {**base, **{name.replace("__", "."): value for name, value in changes.items()}}
        with self.prefect():
            return evaluate_policy(read_config(EvalConfig, file=None, overrides=options, defaults=False))

    @contextmanager
    def command(
        self,
        *words: str,
        options: Mapping[str, str],
        home: Path | None = None,
        streams: Mapping[str, Any] = PIPES,
        **env: str,
    ) -> Iterator[Command]:
        """The command `rlvf`. Another home than the lab's gets a Prefect server of its own."""
        mark = uuid.uuid4().hex
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "RLVF_"))}
        address = {} if home is not None else self.access
        try:
            with started(
                *(sys.executable, "-c", "from flows.cli import main; main()", *words),
                *(word for name, value in options.items() for word in (f"--{name}", value)),
                **streams,
                env={**inherited, **address, "RLVF_HOME": str(home or self.home), MARK: mark, **env},
            ) as process:
                yield Command(process, mark)
        finally:
            kill_marked(mark)  # a server outlives its user by a second

    # -- the shared cluster

    def settle(self) -> None:
        """Wait for workers that an earlier test has killed."""
        until(lambda: {offer.name for offer in offers(self.client)} >= {"trainer", "generator-0", "verifier-0"})

    def worker(self, name: str) -> tuple[str, int]:
        """The address and the process id of a worker."""
        (address,) = [offer.address for offer in offers(self.client) if offer.name == name]
        return address, int(self.client.run(os.getpid, workers=[address])[address])

    # -- a run on disk

    def run_folder(self, name: str) -> Path:
        return self.home / "runs" / name

    def record_folder(self, uri: str) -> Path:
        """Where the lab's home keeps the record of a run that lies elsewhere."""
        return local_folder(uri, self.home)

    @staticmethod
    def metrics(run: Path, metric: str) -> dict[int, float]:
        """The values of a metric by step, none of which was logged twice."""
        logged = [
            (line.step, line.metrics[metric]) for line in read_metrics(run / "metrics.jsonl") if metric in line.metrics
        ]
        assert len(dict(logged)) == len(logged)
        return dict(logged)

    @staticmethod
    def weights_digest(run: Path, step: int) -> str:
        """Of the weights as the trainer holds them."""
        return sha256((run / "state" / str(step) / "model.safetensors").read_bytes()).hexdigest()

    def mlflow(self, run: Path, home: Path | None = None) -> tuple[Any, Any]:
        """An MLflow client and the run's MLflow run."""
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=f"sqlite:///{home or self.home}/mlflow.db")
        return client, client.get_run(json.loads((run / "tracking.json").read_text())["run_id"])

    def fresh_home(self, folder: Path) -> Path:
        """Another home, whose databases need no migration and whose warm-up is there."""
        import sqlite3
        from contextlib import closing

        (folder / "prefect").mkdir(parents=True)
        for name in ("prefect/prefect.db", "mlflow.db"):
            with (
                closing(sqlite3.connect(self.home / name)) as old,
                closing(sqlite3.connect(folder / name)) as new,
            ):
                old.backup(new)
        shutil.copytree(self.home / "warmup", folder / "warmup")
        return folder


@contextmanager
def prefect_server_on_any_port(home: Path) -> Iterator[services.PrefectServer]:
    """The usual port is left to the commands that start servers of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(services, "PORT", 0)
        server = services.prefect_server(home, lambda _: None)
        entered = server.__enter__()
    try:
        yield entered
    finally:
        server.__exit__(None, None, None)


@pytest.fixture(scope="session")
def lab(half_right: Path, sums: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One home, one Prefect server and one cluster for all runs that need no others."""
    home = tmp_path_factory.mktemp("lab")
    problems = home / "sums.csv"
    rows = [f"{expression},{text}" for expression, text in sums]
    problems.write_text("\n".join(["python_expression,natural_language", *rows]) + "\n")
    keep_whole(warm_up_uri(home, warm_up_spec(SftConfig())), shutil.copytree(half_right, home / "half-right"))
    config = ClusterConfig(threads=1, device="cpu")
    with (
        pytest.MonkeyPatch.context() as patch,
        prefect_server_on_any_port(home) as server,
        local_cluster(
            config,
            Security(require_encryption=False),  # type: ignore[no-untyped-call]  # commands with other homes join it
            log_dir=home / "logs",
            preload=IMPORTS,
        ) as client,
    ):
        for name in server.environment:  # a test gets at the server by `Lab.prefect`, others do not see it
            patch.delenv(name, raising=False)
        yield Lab(home, server.wait(), services.server_password(home), client, problems, half_right, rlvf_home())


@pytest.fixture
def s3(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URI of a bucket of a local S3 API that this process and the shared cluster use."""
    s3fs = pytest.importorskip("s3fs", reason="needs s3fs: install the extra 's3'")
    server = pytest.importorskip("moto.server", reason="needs moto[server]: install the extra 'dev'")
    import boto3

    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    access = {
        "AWS_ENDPOINT_URL_S3": f"http://{host}:{port}",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": "tester's",
    }
    for name, value in access.items():
        monkeypatch.setenv(name, value)
    lab.settle()
    lab.client.run(lambda: __import__("os").environ.update(access))  # sent by value: os.environ would be a copy
    lab.client.run(s3fs.S3FileSystem.clear_instance_cache)  # an earlier test's, of a server that is gone
    s3fs.S3FileSystem.clear_instance_cache()
    boto3.client("s3").create_bucket(Bucket="runs")
    yield "s3://runs"
    s3fs.S3FileSystem.clear_instance_cache()
    running.stop()
