"""A home with services and machines, where runs are trained that something happens to."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGTERM
from typing import Any

from distributed import Client

from flows.benches.place import ANY_PORT, MarkedHome, marked_home
from flows.benches.processes import until
from infra.cluster.placement import offers
from infra.runs.metric_log import read_metrics
from infra.security.tls import dask_security
from infra.services.http import answers

END_SECONDS = 120.0  # for what was asked to end
PATIENCE = 600.0  # seconds for a run, and for what has to come back
MACHINES = {"g0": "generator", "g1": "generator", "t": "trainer", "v": "verifier"}
OPTIONS = {
    "held_out": "16",
    "batch.prompts": "16",
    "batch.samples": "8",
    "batch.lease": "4",
    "tracking.system_metrics": "false",
    "tracking.report": "false",
}


def times(run: Path) -> list[float]:
    """When each step was logged."""
    return [line.time / 1000 for line in read_metrics(run / "metrics.jsonl") if "groups/used" in line.metrics]


@dataclass
class Stage:
    """The home where runs are trained, as `check_steps` and `kill_in_call` use it."""

    place: MarkedHome
    shell: MarkedHome  # where runs are begun
    client: Any
    machines: ExitStack
    options: Mapping[str, str]
    steps: int
    joined: dict[str, Any] = field(default_factory=dict)  # the process of each machine's command

    def join(self, name: str, **env: str) -> None:
        """Have a machine work for the cluster."""
        words = ("worker", "--roles", MACHINES[name], "--name", name, "--threads", "1")
        log = self.place.home / f"{name}.log"
        self.joined[name] = self.machines.enter_context(self.place.started(*words, log=log, **env))

    def leave(self, name: str) -> None:
        """Have a machine leave it, in order."""
        self.joined[name].send_signal(SIGTERM)
        self.joined[name].wait(END_SECONDS)

    def worker(self, name: str) -> tuple[str, int]:
        """The address and the process id of a worker."""
        (address,) = [offer.address for offer in offers(self.client) if offer.name == name]
        return address, int(self.client.run(os.getpid, workers=[address])[address])

    def settle(self) -> None:
        """Wait until all is there again."""
        until(lambda: self.is_there() and self.answers("prefect") and self.answers("mlflow"), PATIENCE)

    def is_there(self, *names: str) -> bool:
        """Whether the workers of these names are there; all, where none is given."""
        wanted = set(names) or {f"{name}-{role}" for name, role in MACHINES.items()}
        with suppress(OSError, TimeoutError):
            return {offer.name for offer in offers(self.client, 5.0)} >= wanted
        return False

    def answers(self, service: str) -> bool:
        """Whether this service of `rlvf up` answers."""
        return answers(self.place.up()[service])

    def run_folder(self, name: str) -> Path:
        return self.place.home / "runs" / name

    @staticmethod
    def metrics(run: Path, metric: str) -> dict[int, float]:
        """The values of a metric by step, none of which was logged twice."""
        lines = [line for line in read_metrics(run / "metrics.jsonl") if metric in line.metrics]
        found = {line.step: line.metrics[metric] for line in lines}
        assert len(found) == len(lines), f"{metric} was logged twice"
        return found

    def mlflow(self, run: Path, _home: Path | None = None) -> tuple[Any, Any]:
        """An MLflow client and the run's MLflow run."""
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=f"sqlite:///{self.place.home}/mlflow.db")
        return client, client.get_run(json.loads((run / "tracking.json").read_text())["run_id"])

    def train(self, *words: str, log: Path | None = None) -> Any:
        named = (word for name, value in self.options.items() for word in (f"--{name}", value))
        return self.shell.started("train", "--json", "--steps", str(self.steps), *named, *words, log=log)


@contextmanager
def staged(home: Path, options: Mapping[str, str], steps: int) -> Iterator[Stage]:
    """`rlvf up` and its machines, until the context ends."""
    home.mkdir(parents=True, exist_ok=True)
    with marked_home(home) as where, ExitStack() as machines:
        where.rlvf("up", "--detach", "--no-with-worker", *ANY_PORT, seconds=PATIENCE)
        with Client(where.up()["scheduler"], security=dask_security(home), set_as_default=False) as client:  # type: ignore[no-untyped-call]
            stage = Stage(where, where.shell(), client, machines, options, steps)
            for name in MACHINES:
                stage.join(name)
            yield stage
