"""Whoever takes the port of a service that has died, or was killed with its `rlvf up`, is told no password of the home:
its files, and the environments that were made from them, still name the address."""

import base64
import http.server
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.cli import main
from flows.commands.deployments import Registration, _digest
from infra.runs.mlflow_run import Owner
from infra.runs.tracking import Tracker, TrackingConfig, TrackingError
from infra.services import launch
from infra.services.addresses import Addresses, Up, write_up
from infra.services.gate import PROOF, proof
from infra.services.http import StrangerError, get_json_of_ours
from infra.services.links import page_links
from infra.services.passwords import auth_of
from infra.services.prefect_link import PrefectLink
from infra.services.prefect_server import prefect_api, server_password

SERVICES = ("prefect", "mlflow", "dashboard")


class Taker(http.server.ThreadingHTTPServer):
    """A server that takes whatever it is told, and writes down all that it hears."""

    def __init__(self, answer: Callable[[str], str] = lambda _: "[]") -> None:
        heard: list[str] = []

        class Listens(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                heard.append(f"{self.command} {self.path}\n{self.headers}\n{body.decode()}")
                said = answer(self.path).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            do_POST = do_GET  # noqa: N815 - the base class looks for this name

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Listens)
        self.heard = heard
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def was_asked_for_its_proof(self) -> bool:
        return any(PROOF in each for each in self.heard)

    def learned(self, auth: str) -> list[str]:
        """What it heard that holds the password, plain or as a header has it."""
        password = auth.partition(":")[2]
        forms = (password, base64.b64encode(auth.encode()).decode(), base64.b64encode(password.encode()).decode())
        return [each for each in self.heard if any(form in each for form in forms)]


@pytest.fixture
def takers(home_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """One on each port that the files of a home name, whose `rlvf up` and supervisors were killed."""
    for name in list(os.environ):
        if name.startswith(("PREFECT_", "MLFLOW_")):
            monkeypatch.setenv(name, "")  # what the test sets of them is undone
            monkeypatch.delenv(name)
    made = {name: Taker() for name in SERVICES}
    known = Addresses(f"{made['prefect'].url}/api", made["mlflow"].url, None, f"{made['dashboard'].url}/status")
    (home_folder / "services").mkdir(parents=True)
    write_up(home_folder, Up(2**22 + 1, True, known))
    (home_folder / "prefect").mkdir()
    (home_folder / "prefect" / "server.json").write_text(json.dumps({"url": known.prefect, "pid": 2**22 + 2}))
    kept = home_folder / "services" / "deployments.json"
    kept.write_text(json.dumps({"of": _digest(), "at": known.prefect}))
    found = SimpleNamespace(
        home=home_folder, known=known, auth={name: auth_of(home_folder, name) for name in SERVICES}, **made
    )
    yield found
    for name, taker in made.items():
        taker.shutdown()
        taker.server_close()
        for auth in found.auth.values():
            assert taker.learned(auth) == [], name


def ours(takers: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a shell, or of a run, that was made when the services were there."""
    monkeypatch.setenv("PREFECT_API_URL", takers.known.prefect)
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", takers.auth["prefect"])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", takers.known.mlflow)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "rlvf")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", takers.auth["mlflow"].partition(":")[2])


@pytest.mark.slow
@pytest.mark.parametrize("inherited", [False, True])
@pytest.mark.parametrize("words", [[], ["--json"], ["--shell"]])
def test_status(
    takers: SimpleNamespace,
    words: list[str],
    inherited: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if inherited:
        ours(takers, monkeypatch)
    main(["status", *words])
    assert takers.prefect.was_asked_for_its_proof()
    assert takers.mlflow.was_asked_for_its_proof()
    out, err = capsys.readouterr()
    assert not [auth for auth in takers.auth.values() if auth.partition(":")[2] in out]
    assert "key=" not in out
    if words == ["--shell"]:
        assert f"it is not this home's Prefect server that answers at {takers.known.prefect}" in err


@pytest.mark.slow
def test_a_password_of_ones_own_is_kept_as_well(
    takers: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING"):
        monkeypatch.setenv(name, "someone:chosen")
    main(["status"])
    main(["status", "--shell"])
    assert takers.prefect.was_asked_for_its_proof()
    (takers.home / "prefect" / "server.json").unlink()  # its supervisor lived long enough
    main(["status"])
    main(["status", "--shell"])
    assert takers.prefect.learned("someone:chosen") == []
    assert "chosen" not in capsys.readouterr().out


@pytest.mark.parametrize("inherited", [pytest.param(False, marks=pytest.mark.slow), True])
def test_what_asks_prefect_for_a_home(
    takers: SimpleNamespace, inherited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if inherited:
        ours(takers, monkeypatch)
    api = prefect_api(takers.home, takers.known.prefect)
    with pytest.raises(StrangerError, match="does not show that it is this home's: it is told nothing"):
        api.end_runs()
    with pytest.raises(StrangerError):
        api.has_worker("rlvf-here")
    with pytest.raises(StrangerError):
        Registration(takers.home)({}, takers.known.prefect)
    assert not PrefectLink(takers.home, takers.known.prefect).serves()
    assert page_links(takers.home, takers.known) == {}
    if inherited:
        monkeypatch.setenv(launch.FLOW_RUN, "0" * 8)
        with pytest.raises(StrangerError):
            launch._tell("it broke", 1, [])
    assert takers.prefect.was_asked_for_its_proof()
    assert all(PROOF in each for each in takers.prefect.heard)


@pytest.mark.parametrize("inherited", [False, True])
def test_what_a_run_logs(takers: SimpleNamespace, inherited: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if inherited:
        ours(takers, monkeypatch)
    config = TrackingConfig(uri=takers.known.mlflow, system_metrics=False)
    with pytest.raises(TrackingError):
        Tracker(config, home=takers.home, experiment="x", run_name="x", run_id=None, params={}, owner=Owner("x"))
    assert takers.mlflow.was_asked_for_its_proof()


def test_what_a_run_logs_when_its_server_goes_and_another_comes(
    takers: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow's own threads (system metrics, uploads) ask for the password with each request."""
    ours(takers, monkeypatch)
    from infra.runs.mlflow_auth import adopt_mlflow

    with suppress(OSError):
        adopt_mlflow(takers.home, takers.known.mlflow)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(MlflowException, match="no MLflow server of this home answers at 127"):
        MlflowClient(takers.known.mlflow).search_experiments()
    assert takers.mlflow.was_asked_for_its_proof()


def test_a_failed_run_names_no_cause_to_a_stranger(takers: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
    from prefect.states import Failed

    from flows.run.failure import name_the_cause

    ours(takers, monkeypatch)
    run: Any = SimpleNamespace(id="0" * 32, deployment_id="there")
    with temporary_settings({PREFECT_API_URL: takers.known.prefect, PREFECT_API_AUTH_STRING: takers.auth["prefect"]}):
        name_the_cause(None, run, Failed(message="it broke"))
    assert takers.prefect.heard == []  # its supervisor is gone, and that is enough


def test_who_comes_between_the_proof_and_the_question_hears_nothing(home_folder: Path) -> None:
    auth = server_password(home_folder)
    # it proves what it has to, and closes the connection, as a server does that dies then
    taker = Taker(lambda path: proof(auth, taker.server_port, path.partition("of=")[2]))
    with pytest.raises(ConnectionError):
        get_json_of_ours(f"{taker.url}/api/flow_runs/filter", auth, {})
    taker.shutdown()
    taker.server_close()
    assert len(taker.heard) == 1
    assert taker.learned(auth) == []
