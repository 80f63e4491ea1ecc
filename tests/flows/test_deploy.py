"""The deployments of prefect.yaml on a real server, and a real worker that runs one."""

import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.config import EvalConfig, SftConfig, TrainConfig
from tests.processes import MARK, marked, started, until

MANIFEST = Path(__file__).parents[2] / "prefect.yaml"
CONFIGS = {"rlvf/train": TrainConfig, "rlvf-sft/warm-up": SftConfig, "rlvf-eval/scheduled": EvalConfig}


@dataclass(frozen=True)
class Server:
    """A Prefect server with the deployments on it, used as another machine would use it."""

    lab: Any
    folder: Path  # where its commands are given; holds a copy of prefect.yaml

    @contextmanager
    def prefect(self, *words: str, mark: str = "") -> Iterator[subprocess.Popen[str]]:
        """The command `prefect`."""
        inherited = {name: value for name, value in os.environ.items() if name != "RLVF_HOME"}
        with started(
            *(sys.executable, "-P", "-m", "prefect", "--no-prompt", *words),
            cwd=self.folder,
            env={**inherited, **self.lab.access, MARK: mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            yield process

    def run(self, *words: str) -> str:
        with self.prefect(*words) as process:
            out, _ = process.communicate(timeout=60)
            assert process.returncode == 0, out
            return out

    def api(self, path: str, **body: Any) -> Any:
        """POST with a body, GET without one."""
        return self.lab.api(path, body or None)

    def deployment(self, name: str) -> Any:
        return self.api(f"deployments/name/{name}")

    def start(self, deployment: str, config: Any) -> Any:
        return self.api(
            f"deployments/{self.deployment(deployment)['id']}/create_flow_run", parameters={"config": config}
        )


@pytest.fixture(scope="module")
def server(lab: Any, tmp_path_factory: pytest.TempPathFactory) -> Server:
    folder = tmp_path_factory.mktemp("deployer")
    shutil.copy(MANIFEST, folder)
    server = Server(lab, folder)
    server.run("work-pool", "create", "rlvf", "--type", "process", "--overwrite")
    said = server.run("deploy", "--all")
    for name in CONFIGS:
        assert name in said
    return server


def test_every_deployment_is_there_and_asks_for_its_configuration(server: Server) -> None:
    for name, model in CONFIGS.items():
        deployment = server.deployment(name)
        schema = deployment["parameter_openapi_schema"]
        assert schema["definitions"][model.__name__]["properties"].keys() == model.model_fields.keys()
        assert deployment["enforce_parameter_schema"]
        assert deployment["work_pool_name"] == "rlvf"
        model.model_validate(deployment["parameters"]["config"])


def test_no_deployment_names_a_place_of_the_machine_it_was_made_on(server: Server) -> None:
    for name in CONFIGS:
        deployment = server.deployment(name)
        assert not deployment["pull_steps"]
        assert deployment["path"] in (None, ".", "")
        said = json.dumps(deployment)
        assert str(server.folder) not in said
        assert str(MANIFEST.parent) not in said


def test_a_second_training_waits_and_the_newest_run_is_evaluated_every_day(server: Server) -> None:
    train = server.deployment("rlvf/train")
    assert train["global_concurrency_limit"]["limit"] == 1
    assert train["concurrency_options"]["collision_strategy"] == "ENQUEUE"
    (schedule,) = server.deployment("rlvf-eval/scheduled")["schedules"]
    assert schedule["schedule"]["cron"]
    assert schedule["active"]


@pytest.mark.parametrize(
    ("deployment", "config", "named"),
    [
        ("rlvf/train", {"steps": 0}, "config.steps"),
        ("rlvf/train", {"loss": {"name": "ppo"}}, "config.loss.name"),
        ("rlvf/train", {"stepz": 1}, "stepz"),
        ("rlvf/train", {"verifier": 3}, "config.verifier"),
        ("rlvf-sft/warm-up", {"warm_up": {"batch": "many"}}, "config.warm_up.batch"),
        ("rlvf-eval/scheduled", {"samples": 0}, "config.samples"),
    ],
)
def test_a_bad_value_is_refused_when_a_run_is_asked_for(
    server: Server, deployment: str, config: Any, named: str
) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.start(deployment, config)
    assert 400 <= refused.value.code < 500
    assert named in refused.value.read().decode()


def test_a_worker_runs_the_deployment_to_the_end_and_leaves_nothing_running(server: Server, lab: Any) -> None:
    lab.fresh_home(server.folder / ".rlvf")  # a worker without $RLVF_HOME works where it was started
    config = {
        "run": "deployed",
        "steps": 1,
        "held_out": 4,
        "batch": {"prompts": 2, "samples": 2, "refill": 1},
        "verifier": "arithmetic",  # in short, as in YAML
        "warm_up": {"steps": 2, "batch": 4},
        "sampling": {"max_tokens": 4},
        "cluster": {"threads": 1},
        "tracking": {"system_metrics": False},
    }
    flow_run = server.start("rlvf/train", config)
    mark = uuid.uuid4().hex
    with server.prefect("worker", "start", "--pool", "rlvf", "--run-once", mark=mark) as worker:
        out, _ = worker.communicate(timeout=90)
    state = server.api(f"flow_runs/{flow_run['id']}")["state"]
    assert state["type"] == "COMPLETED", f"{state}\n{out}"
    run = server.folder / ".rlvf" / "runs" / "deployed"
    assert json.loads((run / "result.json").read_text())["steps"] == 1
    assert yaml.safe_load((run / "config.yaml").read_text())["warm_up"]["steps"] == 2
    until(lambda: not marked(mark))
