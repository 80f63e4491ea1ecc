"""The programs of the services of `rlvf up`, Prefect's server apart.

No secret stands on a command line, which every user of the machine can read; the environment of a process is its
owner's alone.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from infra.cluster.settings import DASHBOARD_PORT, dask_environment
from infra.hosts import LOOPBACK, is_loopback, without_proxy
from infra.security.bundles import machine_name
from infra.security.tls import tls_environment
from infra.services.addresses import Addresses
from infra.services.own_artifacts import artifact_store, remember_store
from infra.services.passwords import auth_of
from infra.services.prefect_api import POOL
from infra.services.served import mlflow_address, served
from infra.services.supervisor import Program

WORKER_STOP_SECONDS = 5.0  # its runs are not in its hands: they end when it does


@dataclass(frozen=True)
class StackConfig:
    """The options of `rlvf up`."""

    home: Path
    storage: str
    endpoint: str | None = None  # of an S3 service that is not Amazon's
    host: str = LOOPBACK
    tls: bool = False  # for Dask; the certificates are there
    ports: Mapping[str, int] = field(default_factory=dict)  # the given ones, by service
    works: bool = False  # this machine is a worker, too
    mark: str | None = None  # left in the storage: see `infra.storage.mark`

    @property
    def https(self) -> bool:
        """Whether pages are encrypted: not on loopback, where a browser would only warn of an unknown authority."""
        return self.tls and not is_loopback(self.host)


def mlflow(config: StackConfig, folder: Path, url: str, listening: int | None) -> Program:
    """An MLflow server on the home's SQLite file, or on $MLFLOW_BACKEND_STORE_URI, at the `listening` socket if given.
    Artifacts go to the storage, which the home notes."""
    home = config.home
    if not os.environ.get("MLFLOW_BACKEND_STORE_URI"):  # else it serves another database than the home's
        remember_store(home, config.storage, config.mark)
    command, secret = served("mlflow", url, home, auth_of(home, "mlflow"), listening)
    environment = {
        "MLFLOW_BACKEND_STORE_URI": os.environ.get("MLFLOW_BACKEND_STORE_URI") or f"sqlite:///{home}/mlflow.db",
        "MLFLOW_ARTIFACTS_DESTINATION": artifact_store(config.storage),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
    }
    sockets = [] if listening is None else [listening]
    return Program(command, _common(config) | environment | secret, folder, sockets=sockets)


def scheduler(config: StackConfig, folder: Path, port: int, page: int) -> Program:
    """A Dask scheduler."""
    command = [sys.executable, "-P", "-m", "distributed.cli.dask_scheduler", "--host", config.host]
    command += ["--port", str(port), "--dashboard-address", f"{LOOPBACK}:{page}"]
    environment = {**dask_environment(), "RLVF_HOME": str(config.home), DASHBOARD_PORT: str(page)}
    if config.tls:
        command += ["--protocol", "tls"]
        environment |= tls_environment(config.home)
    return Program(command, _common(config) | environment, folder)


def worker(config: StackConfig, known: Addresses, prefect: Mapping[str, str]) -> Program:
    """A Prefect worker that starts the runs of the work pool, in an environment that names the services."""
    home = config.home
    environment = {
        **prefect,
        "RLVF_HOME": str(home),
        "RLVF_STORAGE": config.storage,
        "RLVF_SCHEDULER": known.scheduler or "",
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        # the deployments' command is `python …`, also where rlvf's environment was not activated
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "PYTHONSAFEPATH": "1",  # a folder named flows in the working directory is not ours
    }
    if not os.environ.get("MLFLOW_TRACKING_URI") and known.mlflow:
        environment |= mlflow_address(home, known.mlflow)  # a run takes the password from the home
    command = [sys.executable, "-P", "-m", "infra.services.settled", "worker", "start"]
    command += ["--pool", POOL, "--type", "process"]
    # where `rlvf up` was given, so that a run finds the files that it names as they are seen from there
    return Program(
        [*command, "--name", prefect_worker_name()], _common(config) | environment, Path.cwd(), WORKER_STOP_SECONDS
    )


def machine(config: StackConfig, scheduler: str) -> Program:
    """`rlvf worker` on this machine, in its default roles."""
    command = [sys.executable, "-P", "-c", "from flows.cli import main; main()"]
    command += ["worker", scheduler, "--name", machine_name()]
    command += [] if config.tls else ["--insecure"]
    environment = {"RLVF_HOME": str(config.home), "RLVF_STORAGE": config.storage, "PYTHONUNBUFFERED": "1"}
    return Program(command, _common(config) | environment, Path.cwd(), WORKER_STOP_SECONDS)


def prefect_worker_name() -> str:
    """The name of this machine's Prefect worker."""
    return f"rlvf-{machine_name()}"


def _common(config: StackConfig) -> dict[str, str]:
    endpoint = {"AWS_ENDPOINT_URL_S3": config.endpoint} if config.endpoint else {}
    return without_proxy(config.host) | endpoint
