"""`rlvf up` on a machine that works, too."""

import json
import os
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.benches.place import ANY_PORT, MarkedHome, marked_home
from infra.cluster.reach import parse_address
from infra.services.passwords import auth_of
from infra.services.prefect_api import PrefectApi
from infra.services.prefect_server import server_password
from infra.services.scheduler import ask
from infra.storage.mark import has_mark
from tests.other_users import intrude, listening, visit
from tests.processes import until


@pytest.fixture(scope="module")
def working(lab: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MarkedHome]:
    """`rlvf up --detach` on a machine that works, too."""
    with marked_home(lab.fresh_home(tmp_path_factory.mktemp("working") / "home")) as where:
        where.rlvf("up", "--detach", *ANY_PORT)
        yield where
        where.rlvf("down")
        until(lambda: not where.alive(), 90)


def watched(place: MarkedHome, deployment: str, **parameters: Any) -> subprocess.CompletedProcess[str]:
    """Run a deployment as a person does who waits for its end."""
    given = [word for name, value in parameters.items() for word in ("--param", f"{name}={json.dumps(value)}")]
    run = ["prefect", "deployment", "run", deployment, *given, "--watch"]
    command = ["sh", "-c", f'{place.rlvf("status", "--shell")}\n exec "$0" -m "$@"', sys.executable, *run]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env={**os.environ, "COLUMNS": "2000"}
    )


@pytest.mark.slow
def test_this_machine_works_too_and_a_run_that_fails_says_why(working: MarkedHome) -> None:
    workers = working.status()["workers"]
    assert {role for worker in workers for role in worker["roles"]} == {"generator", "verifier", "trainer"}
    assert working.home.stat().st_mode & 0o777 == 0o700
    assert has_mark(working.up()["storage"], working.up()["storage_mark"])  # by which its worker has joined
    assert "shared      " in (working.home / "logs" / "machine.log").read_text()
    done = watched(working, "rlvf/train", config={"placement": {"train": ["CUDA", "TRAINER"]}})
    *_, last = done.stdout.strip().splitlines() or done.stderr.strip().splitlines()
    assert done.returncode == 1, done
    assert "placement.train needs CUDA and TRAINER but no worker offers CUDA" in last
    assert f"rlvf worker {working.up()['scheduler']} --roles trainer --device cuda" in last
    assert "Traceback" not in (working.home / "logs" / "worker.log").read_text()
    api = PrefectApi(working.up()["prefect"], server_password(working.home))
    failed = {"flow_runs": {"state": {"name": {"any_": ["Failed"]}}}}  # as Prefect's page filters
    # the home's database began as a copy of the lab's, whose failed runs are no deployment's
    found = until(lambda: [run for run in api.ask("flow_runs/filter", failed) if run["deployment_id"]])
    assert ["placement.train needs CUDA and TRAINER" in run["state"]["message"] for run in found] == [True], found


@pytest.mark.slow
def test_a_run_goes_on_from_prefect_as_it_was_saved(lab: Any, working: MarkedHome) -> None:
    (working.home / "my_reward.py").write_text(
        "def reward(problem, completion):\n    return float(len(completion) % 2)\n"
    )
    config = {
        "run": "kept",
        "steps": 1,
        "verifier": "my_reward.py:reward",
        "held_out": 8,
        "evals": [{"path": "held_out", "every": 1}],
        "checkpoint": {"keep_best": True},
        "policy": str(lab.policy),
        "batch": {"prompts": 2, "samples": 2},
        "sampling": {"max_tokens": 8},
        "tracking": {"system_metrics": False, "report": False},
    }
    begun = watched(working, "rlvf/train", config=config)
    assert begun.returncode == 0, begun
    saved = working.home / "runs" / "kept" / "config.yaml"
    before = yaml.safe_load(saved.read_text())
    form = {"steps": 2, "verifier": "auto", "seed": 0, "evals": [], "held_out": None, "checkpoint": None}
    done = watched(working, "rlvf/train", resume="kept", config=form)
    assert done.returncode == 0, done
    assert yaml.safe_load(saved.read_text()) == {**before, "steps": 2}
    worker_log = (working.home / "logs" / "worker.log").read_text()
    for line in (
        f"verifier.name stays '{working.home}/my_reward.py:reward', as saved: 'auto' is the default, "
        "which a form sends unasked",
        "evals stays [{'every': 1}], as saved: [] is the default, which a form sends unasked",
        "going on from step 1 of 2",
    ):
        assert line in done.stdout  # --watch shows the log of the page
        assert worker_log.count(line) == 1
    assert "train  step 2/2  reward" in done.stdout
    assert "run kept: 2 steps; " in done.stdout
    evaluated = watched(working, "rlvf-eval/scheduled")
    assert evaluated.returncode == 0, evaluated
    assert "kept: 8 problems, policy v2: reward " in evaluated.stdout
    api = PrefectApi(working.up()["prefect"], server_password(working.home))
    by_deployment = {
        "deployments": {"name": {"any_": ["scheduled"]}},
        "flow_runs": {"state": {"type": {"any_": ["COMPLETED"]}}},
    }
    (ended,) = api.ask("flow_runs/filter", by_deployment)
    assert ended["state"]["message"].startswith("kept: 8 problems, policy v2: reward ")


@pytest.mark.slow
def test_another_user_of_this_machine_is_refused_on_every_port(working: MarkedHome, tmp_path: Path) -> None:
    known = working.up()
    pages = {urllib.parse.urlsplit(known[name]).port for name in ("prefect", "mlflow", "dashboard")}
    ports = listening(working.alive())
    workers = ask(parse_address(known["scheduler"], working.home), working.home).workers
    dask = {urllib.parse.urlsplit(at).port for at in (known["scheduler"], *(worker.address for worker in workers))}
    assert len(dask) == 4  # a generator, a verifier and a trainer
    assert set(ports) >= pages | dask
    assert intrude(ports, tmp_path) == set()
    assert visit(ports) == {port: [401] if port in pages else [] for port in ports}


@pytest.mark.slow
def test_a_run_of_a_deployment_goes_on_by_itself_when_the_scheduler_was_killed(lab: Any, working: MarkedHome) -> None:
    api = PrefectApi(working.up()["prefect"], auth_of(working.home, "prefect"))
    config = {
        "run": "mine",
        "steps": 8,
        "held_out": 16,
        "problems": str(lab.problems),
        "policy": str(lab.policy),
        "batch": {"prompts": 4, "samples": 4, "lease": 2},
        "sampling": {"max_tokens": 12},
        "tracking": {"system_metrics": False, "report": False},
    }
    deployment = api.ask("deployments/name/rlvf/train", seconds=30)["id"]
    asked_for = {"parameters": {"config": config}}
    made = api.ask(f"deployments/{deployment}/create_flow_run", asked_for, seconds=30)["id"]
    run = working.home / "runs" / "mine"

    def state() -> str:
        return str(api.ask(f"flow_runs/{made}", seconds=30)["state"]["type"])

    def said() -> str:
        return (working.home / "logs" / "worker.log").read_text()

    until(lambda: 3 in lab.metrics(run, "groups/used"), 240, every=0.05, about=said)
    working.service("scheduler").kill()
    until(lambda: state() in ("COMPLETED", "FAILED", "CRASHED"), 240, every=0.5, about=said)
    assert state() == "COMPLETED", said()
    assert "is gone; waiting for it" in said()
    assert list(lab.metrics(run, "groups/used")) == list(lab.metrics(run, "loss/policy")) == list(range(1, 9))
