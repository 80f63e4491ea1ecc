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

from flows.config import EvalConfig, TrainConfig
from flows.finetune_config import DpoConfig, RewardModelConfig, SftConfig
from flows.run.failure import cause
from infra.cluster.training_lock import training_lock
from tests.flows.on_examples import write_examples
from tests.processes import MARK, marked, started, until

pytestmark = pytest.mark.slow

MANIFEST = Path(__file__).parents[3] / "prefect.yaml"
CONFIGS = {
    "rlvf/train": TrainConfig,
    "rlvf-sft/warm-up": SftConfig,
    "rlvf-dpo/train": DpoConfig,
    "rlvf-reward-model/train": RewardModelConfig,
    "rlvf-eval/scheduled": EvalConfig,
}

SMALL = {
    "steps": 1,
    "held_out": 4,
    "batch": {"prompts": 2, "samples": 2, "oversample": 1},
    "verifier": "arithmetic",  # in short, as in YAML
    "warm_up": {"steps": 2, "batch": 4},
    "sampling": {"max_tokens": 4},
    "cluster": {"threads": 1},
    "tracking": {"system_metrics": False},
}


@dataclass(frozen=True)
class Server:
    """A Prefect server with the deployments on it, used as another machine would use it."""

    lab: Any
    folder: Path  # where its commands are given; holds a copy of prefect.yaml

    @contextmanager
    def prefect(
        self, *words: str, mark: str = "", stdout: Any = subprocess.PIPE, **env: str
    ) -> Iterator[subprocess.Popen[str]]:
        """The command `prefect`."""
        inherited = {name: value for name, value in os.environ.items() if name != "RLVF_HOME"}
        inherited["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), inherited["PATH"]])  # activated
        with started(
            *(sys.executable, "-P", "-m", "prefect", "--no-prompt", *words),
            cwd=self.folder,
            env={**inherited, **self.lab.access, MARK: mark, **env},
            stdout=stdout,
            stderr=subprocess.STDOUT,
        ) as process:
            yield process

    def run(self, *words: str) -> str:
        with self.prefect(*words) as process:
            out, _ = process.communicate(timeout=90)
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
    flow = server.api("flows/", name="rlvf")["id"]
    limit = {"concurrency_limit": 1, "concurrency_options": {"collision_strategy": "ENQUEUE"}}
    server.api("deployments/", name="train", flow_id=flow, **limit)  # as an earlier version had it
    assert server.deployment("rlvf/train")["global_concurrency_limit"]["limit"] == 1
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


def test_no_run_holds_a_lease_of_prefects_not_even_where_an_earlier_version_had_it_so(server: Server) -> None:
    for name in CONFIGS:  # it ends when the run is paused or the server starts again, and Prefect ends the run then
        deployment = server.deployment(name)
        assert deployment["global_concurrency_limit"] is None
        assert deployment["concurrency_limit"] is None
        assert deployment["concurrency_options"] is None
    assert server.api("work_pools/rlvf")["concurrency_limit"] is None


def test_the_newest_run_is_evaluated_every_day(server: Server) -> None:
    (schedule,) = server.deployment("rlvf-eval/scheduled")["schedules"]
    assert schedule["schedule"]["cron"]
    assert schedule["active"]


@pytest.mark.parametrize(
    ("deployment", "config", "named"),
    [
        ("rlvf/train", {"steps": 0}, "config.steps"),
        ("rlvf/train", {"algorithm": {"name": "pppo"}}, "config.algorithm.name"),
        ("rlvf/train", {"stepz": 1}, "stepz"),
        ("rlvf/train", {"verifier": 3}, "config.verifier"),
        ("rlvf-sft/warm-up", {"warm_up": {"batch": "many"}}, "config.warm_up.batch"),
        ("rlvf-dpo/train", {"beta": 0}, "config.beta"),
        ("rlvf-reward-model/train", {"beta": 0.1}, "beta"),
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
    for name in ("tasks.py", "random.py", "prefect.py"):  # a user's, of no concern to anybody
        (server.folder / name).write_text("raise RuntimeError('taken for another')")
    flow_run = server.start("rlvf/train", SMALL | {"run": "deployed"})
    mark = uuid.uuid4().hex
    with server.prefect("worker", "start", "--pool", "rlvf", "--run-once", mark=mark) as worker:
        out, _ = worker.communicate(timeout=240)
    state = server.api(f"flow_runs/{flow_run['id']}")["state"]
    assert state["type"] == "COMPLETED", f"{state}\n{out}"
    run = server.folder / ".rlvf" / "runs" / "deployed"
    assert json.loads((run / "result.json").read_text())["steps"] == 1
    assert yaml.safe_load((run / "config.yaml").read_text())["warm_up"]["steps"] == 2
    until(lambda: not marked(mark))


def test_a_worker_trains_on_pairs_and_goes_on_with_that(server: Server, lab: Any) -> None:
    home = lab.fresh_home(server.folder / "pairs")
    pairs = write_examples(home) / "pairs.jsonl"
    here = {"policy": str(lab.policy), "cluster": {"scheduler": lab.client.scheduler.address}}
    config = here | {"problems": str(pairs), "run": "preferred", "steps": 1, "tracking": {"system_metrics": False}}
    form = {"steps": 2, "beta": 0.1, "problems": None, "batch": 32}  # with the defaults that it shows
    for asked in ({"config": config | {"beta": 0.3}}, {"config": form, "resume": "preferred"}):
        lab.settle()
        path = f"deployments/{server.deployment('rlvf-dpo/train')['id']}/create_flow_run"
        flow_run = server.api(path, parameters=asked)["id"]
        with server.prefect("worker", "start", "--pool", "rlvf", "--run-once", RLVF_HOME=str(home)) as worker:
            out, _ = worker.communicate(timeout=240)
        state = server.api(f"flow_runs/{flow_run}")["state"]
        assert state["type"] == "COMPLETED", f"{state}\n{out}"
    run = home / "runs" / "preferred"
    assert json.loads((run / "result.json").read_text())["steps"] == 2
    saved = yaml.safe_load((run / "finetune.yaml").read_text())
    given = {name: of for name, of in saved["problems"].items() if of is not None}
    assert (saved["beta"], given) == (0.3, {"path": str(pairs)})
    assert (run / "report.html").exists()


def test_two_trainings_at_once_wait_for_their_turns(server: Server, lab: Any, tmp_path: Path) -> None:
    home = lab.fresh_home(server.folder / "queue")
    here = {"policy": str(lab.policy), "cluster": {"scheduler": lab.client.scheduler.address}}
    runs = [server.start("rlvf/train", SMALL | here | {"run": name})["id"] for name in ("one", "two")]
    log = tmp_path / "worker.log"
    lab.settle()
    once = ("worker", "start", "--pool", "rlvf", "--run-once")
    with log.open("w") as out, server.prefect(*once, stdout=out, RLVF_HOME=str(home)) as worker:
        with training_lock(lab.client, "the test", str):
            waiting = "waiting: the test trains on this cluster"
            until(lambda: log.read_text().count(waiting) == 2, 120, about=log.read_text)
            states = [server.api(f"flow_runs/{run}")["state"] for run in runs]
            assert [state["type"] for state in states] == ["RUNNING", "RUNNING"]
            assert not [state for state in states if state["state_details"]["deployment_concurrency_lease_id"]]
            assert not list(home.glob("runs/*/metrics.jsonl"))
        assert worker.wait(120) == 0
    states = [server.api(f"flow_runs/{run}")["state"]["type"] for run in runs]
    assert states == ["COMPLETED", "COMPLETED"], log.read_text()


def test_a_failed_state_is_named_after_its_cause() -> None:
    assert cause("Flow run encountered an exception: StoreError: full\nat once") == "StoreError: full at once"
    refused = (
        "Validation of flow parameters failed with error: ParameterTypeError: Flow run received invalid parameters:\n"
        " - config: Value error, sync.base: 'public' needs a model"
    )
    assert cause(refused) == "config: Value error, sync.base: 'public' needs a model"
