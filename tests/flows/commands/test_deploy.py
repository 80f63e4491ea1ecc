"""The deployments of prefect.yaml on a real server, and a real worker that runs one."""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from flows.config import EvalConfig, TrainConfig
from flows.finetune_config import SftConfig
from flows.run.failure import cause
from infra.cluster.training_lock import training_lock
from tests.processes import MARK, marked, started, until

MANIFEST = Path(__file__).parents[3] / "prefect.yaml"
CONFIGS = {"rlvf/train": TrainConfig, "rlvf-sft/warm-up": SftConfig, "rlvf-eval/scheduled": EvalConfig}

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


@pytest.mark.slow
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


@pytest.mark.slow
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


@dataclass(frozen=True)
class Launched:
    """What a Prefect worker starts, for a flow whose module does as it says."""

    process: subprocess.Popen[str]
    pid: Path  # where the module writes its process
    state: Callable[[], Any]


@pytest.fixture
def launched(lab: Any, tmp_path: Path) -> Iterator[Callable[[str], Launched]]:
    with ExitStack() as running:

        def launch(source: str) -> Launched:
            pid = tmp_path / "pid"
            (tmp_path / "module_of_a_flow.py").write_text(
                f"import os, signal, time\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\n{source}\n"
            )
            flow = lab.api("flows/", {"name": "of a test"})["id"]
            run = lab.api("flow_runs/", {"flow_id": flow, "state": {"type": "PENDING"}})["id"]
            process = running.enter_context(
                started(
                    *(sys.executable, "-P", "-m", "infra.services.launch", "module_of_a_flow:train"),
                    env={**os.environ, **lab.access, "PYTHONPATH": str(tmp_path), "PREFECT__FLOW_RUN_ID": run},
                )
            )
            return Launched(process, pid, lambda: lab.api(f"flow_runs/{run}")["state"])

        yield launch


@pytest.mark.parametrize(
    ("source", "said"),
    [
        pytest.param(
            "import nosuchmodule",
            "Crashed: ModuleNotFoundError: No module named 'nosuchmodule' (",
            marks=pytest.mark.slow,
        ),
        ("train = 3", "Crashed: TypeError: "),  # no flow, says the engine
        pytest.param("raise SystemExit('no license')", "Crashed: SystemExit: no license", marks=pytest.mark.slow),
        ("os.kill(os.getpid(), signal.SIGKILL)", "Crashed: its process was ended by SIGKILL; where nobody did that,"),
        pytest.param("os._exit(3)", "Crashed: its process ended with exit code 3", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_crashes_before_its_flow_begins_says_why(
    launched: Callable[[str], Launched], source: str, said: str
) -> None:
    run = launched(source)
    until(lambda: run.state()["type"] == "CRASHED")
    named = run.state()
    assert named["name"].startswith(said), named
    if source.startswith("import"):  # once is enough: it takes its time
        until(lambda: run.state()["name"] == "Crashed", about=lambda: str(run.state()))  # what the page filters by
        assert run.process.wait(60) == 0  # the worker has nothing to add
        assert run.state()["message"] == named["message"] == named["name"].removeprefix("Crashed: ")


def test_who_stops_a_run_stops_its_engine(launched: Callable[[str], Launched]) -> None:
    asked = launched("time.sleep(100)")
    until(lambda: asked.pid.exists() and bool(asked.pid.read_text()))
    asked.process.terminate()
    assert asked.process.wait(90) == 128 + signal.SIGTERM
    assert asked.state()["type"] == "PENDING"  # whoever asked says what that means


def test_an_engine_ends_with_the_process_that_its_worker_knows(launched: Callable[[str], Launched]) -> None:
    killed = launched("time.sleep(100)")
    until(lambda: killed.pid.exists() and bool(killed.pid.read_text()))
    killed.process.kill()

    def ended() -> bool:
        try:
            return psutil.Process(int(killed.pid.read_text())).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    until(ended)


def test_a_failed_state_is_named_after_its_cause() -> None:
    assert cause("Flow run encountered an exception: StoreError: full\nat once") == "StoreError: full at once"
    refused = (
        "Validation of flow parameters failed with error: ParameterTypeError: Flow run received invalid parameters:\n"
        " - config: Value error, sync.base: 'public' needs a model"
    )
    assert cause(refused) == "config: Value error, sync.base: 'public' needs a model"
