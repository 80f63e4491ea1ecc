"""What Prefect's page of a run says: its lines, how it ended, and how far a warm-up is."""

import re
import time
from typing import Any
from uuid import UUID

import pytest

from flows.commands.status import SERVICES, lines
from flows.finetune_config import SftConfig
from infra.services.addresses import Addresses
from infra.services.prefect_api import PrefectApi
from infra.services.prefect_log import PrefectLog
from tests.flows.run.test_artifacts import artifacts
from tests.processes import until


def flow_run(lab: Any, name: str) -> Any:
    """The flow run of that name."""
    (found,) = lab.api("flow_runs/filter", {"flow_runs": {"name": {"any_": [name]}}})
    return found


def logged(lab: Any, identity: str) -> list[tuple[int, str]]:
    """The level and the text of each of our lines in a flow run's log, as it was said."""
    wanted = {"logs": {"flow_run_id": {"any_": [identity]}}, "sort": "TIMESTAMP_ASC"}
    return [(line["level"], line["message"]) for line in lab.api("logs/filter", wanted) if line["name"] == "rlvf"]


@pytest.mark.slow
def test_prefect_has_what_a_run_says_and_the_terminal_has_it_once(lab: Any) -> None:
    lab.settle()
    with lab.command("train", options=lab.options(run="told", steps="3")) as command:
        code, _, err = command.finish()
    assert code == 0, err
    assert "Prefect missed" not in err
    run = flow_run(lab, "told")
    said = [text for _, text in logged(lab, run["id"])]
    steps = [text for text in said if re.match(r"train  step \d/3  reward ", text)]
    assert steps[0].startswith("train  step 1/3")
    assert steps[-1].startswith("train  step 3/3")
    (outcome,) = [text for text in said if text.startswith("run told: 3 steps; ")]
    (reward,) = [text for text in said if text.startswith("reward ") and "greedy on 16 held-out" in text]
    assert run["state"]["message"].startswith(f"{outcome}; {reward}")
    assert not {text for text in said if err.splitlines().count(text) > said.count(text)}
    assert "Finished in state" not in err
    with pytest.raises(ValueError, match=r"run 'told' exists; go on with it by resume: told, or name another"):
        lab.train(run="told")


@pytest.mark.slow
def test_the_page_of_a_warm_up_moves(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.sft import sft

    monkeypatch.setattr("flows.run.artifacts.PAUSE_SECONDS", 0)
    config = {"warm_up": {"steps": 2, "batch": 4}, "cluster": {"scheduler": lab.client.scheduler.address}}
    lab.settle()
    with lab.prefect():
        state = sft(SftConfig.model_validate(config), return_state=True)
    assert state.is_completed()
    shown = artifacts(lab, str(state.state_details.flow_run_id))
    assert shown["warm-up-progress"].data == 100
    assert shown["warm-up-progress"].description == "step 2 of 2"


@pytest.mark.slow
def test_a_run_under_way_is_shown_with_its_step(lab: Any) -> None:
    flow = lab.api("flows/", {"name": "of this test"})["id"]
    for name in ("begins", "trains"):
        run = lab.api("flow_runs/", {"flow_id": flow, "name": name, "state": {"type": "RUNNING"}})["id"]
    told = {"type": "progress", "key": "trains-progress", "data": 15.0, "description": "step 3 of 20"}
    lab.api("artifacts/", {**told, "flow_run_id": run})
    found = PrefectApi(lab.url, lab.auth).running("of this test")
    assert sorted(found) == [("begins", ""), ("trains", "step 3 of 20")]
    assert lines(Addresses(), dict.fromkeys(SERVICES, False), [], sorted(found), "")[-1] == (
        "training: begins; trains, step 3 of 20"
    )


@pytest.fixture
def of_a_flow_run(lab: Any) -> str:
    flow = lab.api("flows/", {"name": "of a test"})["id"]
    return str(lab.api("flow_runs/", {"flow_id": flow, "state": {"type": "RUNNING"}})["id"])


def opened(lab: Any, serves: Any) -> PrefectLog:
    from prefect.settings import PREFECT_LOGGING_TO_API_ENABLED, temporary_settings

    with lab.prefect(), temporary_settings({PREFECT_LOGGING_TO_API_ENABLED: True}):
        log = PrefectLog(serves)
        log.open()
    return log


def test_lines_wait_for_their_flow_run_and_for_its_server(
    lab: Any, of_a_flow_run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "hush-hush")
    there = [False]
    log = opened(lab, lambda **_: there[0])
    log.say("before it began")
    log.begin(UUID(of_a_flow_run))
    log.say("warning: hush-hush\x1b[2J")
    assert logged(lab, of_a_flow_run) == []
    there[0] = True
    said = [(20, "before it began"), (30, "warning: ***\\x1b[2J")]
    until(lambda: logged(lab, of_a_flow_run) == said)
    log.say("the last line")
    assert log.close(10) == 0
    assert logged(lab, of_a_flow_run) == [*said, (20, "the last line")]


def test_a_server_that_is_away_is_waited_for_no_longer_than_asked(lab: Any, of_a_flow_run: str) -> None:
    log = opened(lab, lambda **_: False)
    log.begin(UUID(of_a_flow_run))
    for line in range(3):
        log.say(f"line {line}")
    began = time.monotonic()
    assert log.close(5) == 3
    assert time.monotonic() - began < 4  # at once: it was asked, and is away
    assert logged(lab, of_a_flow_run) == []


def test_a_log_that_nobody_wants_is_none(lab: Any, of_a_flow_run: str) -> None:
    with lab.prefect():  # whose settings say so
        log = PrefectLog(lambda **_: True)
        log.open()
    log.begin(UUID(of_a_flow_run))
    log.say("a line")
    assert log.close(5) == 0
    assert logged(lab, of_a_flow_run) == []
