"""A run that was interrupted, or killed with its machine, is gone on with, there or elsewhere."""

import json
from dataclasses import replace
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM, Signals
from typing import Any

import pytest
from mlflow import MlflowClient

from flows.start.runs import Run, local_folder
from flows.start.saved import saved_config
from flows.start.trust import remember
from infra.process_identity import ProcessIdentity
from infra.runs.record import read_record
from infra.services.prefect_api import PrefectApi
from infra.storage import place, store
from infra.storage.claim import Claim
from tests.flows.accidents import check_steps
from tests.processes import terminal, until


@pytest.mark.slow
@pytest.mark.parametrize("number", [SIGINT, SIGTERM, SIGHUP])
def test_an_interrupted_run_says_how_to_go_on_and_does(lab: Any, number: Signals, tmp_path: Path) -> None:
    home = lab.fresh_home(tmp_path / "home")
    run = home / "runs" / "interrupted"
    own = {} if number == SIGTERM else {"cluster__scheduler": None, "cluster__threads": "1"}
    options = lab.options(run=run.name, steps="500", **own)
    with terminal() as window:
        streams = {"streams": window.streams} if number == SIGHUP else {}
        with lab.command("train", options=options, home=home, **streams) as command:

            def has_steps() -> bool:
                window.read()
                return 2 in lab.metrics(run, "groups/used") or command.process.poll() is not None

            until(has_steps)
            if number == SIGINT:
                command.signal_group(SIGINT)  # as a terminal does
            elif number == SIGTERM:
                command.process.terminate()
            else:
                window.close()
                command.signal_group(SIGHUP)  # as its shell does as well
            code, out, err = command.finish()
            until(lambda: not command.alive(), about=lambda: str(command.alive()))
    if number == SIGHUP:
        out, err = "", (home / "logs" / "hangup.log").read_text()
    assert code == 130, err
    assert out == ""
    assert "go on with: rlvf train --resume interrupted" in err
    assert "Traceback" not in err
    _, logged = lab.mlflow(run, home)
    assert logged.info.status == "KILLED"
    reached = max(lab.metrics(run, "groups/used"))
    lab.train(resume=str(run), home=home, steps=str(reached + 2))
    check_steps(lab, run, reached + 2, home)
    assert lab.mlflow(run, home)[1].info.run_id == logged.info.run_id


@pytest.mark.slow
def test_a_run_that_goes_on_elsewhere_has_every_step_once(lab: Any, s3: str, tmp_path: Path) -> None:
    uri = f"{s3}/travels"
    tracked = f"sqlite:///{lab.home}/mlflow.db"
    homes = [lab.fresh_home(tmp_path / name) for name in ("one", "other")]
    options = lab.options(run=uri, steps="500", cluster__scheduler=None, cluster__threads="1", tracking__uri=tracked)
    first = local_folder(uri, homes[0])
    with lab.command("train", options=options, home=homes[0], **lab.access) as command:
        until(lambda: 4 in lab.metrics(first, "groups/used") or command.process.poll() is not None)
        command.signal_group(SIGKILL)
        assert command.finish()[0] == -SIGKILL
    killed = place.read_text(f"{uri}/flow_run.txt")
    assert lab.api(f"flow_runs/{killed}")["state"]["type"] == "RUNNING"
    assert "travels" not in dict(PrefectApi(lab.url, lab.auth).running("rlvf"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Claim, "is_gone", True)  # that the owner has ended is seen on its machine only: it takes 30 s
        remember_in(homes[1], uri)
        reached = store.versions(f"{uri}/state")[-1] + 2
        lab.train(resume=uri, home=homes[1], steps=str(reached), tracking__uri=tracked)
    state = lab.api(f"flow_runs/{killed}")["state"]
    assert (state["type"], state["message"]) == ("CRASHED", "its process is gone")
    record = read_record(uri, local_folder(uri, homes[1]))
    assert record.steps == list(range(1, reached + 1))
    seconds = record.curve("perf/step_seconds")
    assert set(range(1, reached + 1)) - set(seconds) <= {reached - 3, reached - 2}  # that of the kill
    mlflow = MlflowClient(tracking_uri=tracked)
    run_id = json.loads(place.read_text(f"{uri}/tracking.json"))["run_id"]
    for name in ("reward/mean", "groups/used", "policy/entropy"):
        assert [point.step for point in mlflow.get_metric_history(run_id, name)] == list(range(1, reached + 1))


def test_a_run_whose_process_is_gone_is_marked_as_crashed(lab: Any) -> None:
    from prefect.states import Running

    from flows.sft import sft
    from flows.train import train

    living = ProcessIdentity.of_this()
    gone = replace(living, started=living.started - 5)  # this process has its number by now
    elsewhere = replace(gone, machine="another")
    api = PrefectApi(lab.url, lab.auth)
    begun = {}
    with lab.prefect() as client:
        for flow in (train, sft):
            for name, process in {"gone": gone, "elsewhere": elsewhere, "living": living}.items():
                run = client.create_flow_run(flow, name=name, state=Running())
                client.update_flow_run(run.id, infrastructure_pid=process.to_json())
                begun[flow.name, name] = run.id
    assert {"elsewhere", "living"} <= dict(api.running("rlvf")).keys()
    assert "gone" not in dict(api.running("rlvf"))
    assert api.end_runs().count(("gone", "gone")) == 1  # a warm-up cannot go on
    for (_, name), run_id in begun.items():
        assert lab.api(f"flow_runs/{run_id}")["state"]["type"] == ("CRASHED" if name == "gone" else "RUNNING")


def remember_in(home: Path, uri: str) -> None:
    """Somebody there has said that the run may bring its tracking address."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLVF_HOME", str(home))
        remember(Run(uri, saved_config(uri), resumed=True))
