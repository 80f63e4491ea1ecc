"""What `rlvf worker` refuses before anything is started, and which roles it takes."""

import json
import re
import socket
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from flows.commands import worker as module
from flows.commands.worker import default_roles, roles
from infra.security.identity import own_certificates
from infra.services.addresses import Addresses
from infra.services.scheduler import Seen, WorkerSeen
from tests.flows.commands.refusals import refused

pytestmark = pytest.mark.usefixtures("own_signals_and_environment")


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "no scheduler to join: give its address" in refused(["worker"], capsys)
    line = refused(["worker", "--roles", "banana"], capsys)
    assert "'banana' is no role; the roles are generator, trainer, verifier" in line
    assert "tcp://127.0.0.1:9: nothing listens there" in refused(["worker", "tcp://127.0.0.1:9"], capsys)
    assert "tcp://127.0.0.1:9: nothing listens there" in refused(["worker", "--scheduler", "tcp://127.0.0.1:9"], capsys)
    assert "tcp://a is given too" in refused(["worker", "tcp://a", "--scheduler", "tcp://b"], capsys)
    assert "cannot be read" in refused(["worker", "--bundle", str(tmp_path / "none")], capsys)
    assert "no certificates in" in refused(["worker", "tls://127.0.0.1:9"], capsys)
    assert "no address of a scheduler" in refused(["worker", "http://h"], capsys)
    assert "--threads 0: give at least 1" in refused(["worker", "tcp://h", "--threads", "0"], capsys)
    for memory in ("0", "-1", "nan"):
        line = refused(["worker", "tcp://h", f"--memory={memory}"], capsys)
        assert f"--memory {memory}: give a number of GB above 0" in line
    assert "give a short name" in refused(["worker", "tcp://h", "--name", "../x"], capsys)
    assert "give a short name" in refused(["certs", "a/b"], capsys)
    assert "certs needs the name of the other machine" in refused(["certs"], capsys)
    assert "argument --days" in refused(["certs", "a", "--days", "-3"], capsys)


class Stub:
    """Stands for a scheduler that is elsewhere and says these `answers`."""

    def __init__(self, patch: pytest.MonkeyPatch, host: str = "127.0.0.1", **answers: Any) -> None:
        patch.setattr(module, "reach", lambda *_: host)
        patch.setattr(module, "ask", lambda *_: Seen(**answers))
        patch.setattr("infra.checks.cluster.answers_back", lambda *_: None)


def test_a_network_without_tls_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Stub(monkeypatch, host="10.0.0.9")
    line = refused(["worker", "tcp://10.0.0.5"], capsys)
    assert "tcp://10.0.0.5:8786 is not encrypted" in line
    assert "--insecure" in line


@pytest.mark.parametrize(
    ("answers", "line"),
    [
        ({"versions": {"python": "3.8.1"}}, "versions: python .* here, 3.8.1 there .the scheduler.*pip install -c"),
        (
            {"workers": (WorkerSeen("old", "a", versions={"rlvf": "0.0.1"}),)},
            "versions: rlvf .* here, 0.0.1 there .old.*pip",
        ),
        (
            {"workers": (WorkerSeen("fork", "a", versions={"rlvf": version("rlvf"), "rlvf source": "1a2b3c"}),)},
            "versions: rlvf source [0-9a-f]{12} here, 1a2b3c there .fork.; install the same commit",
        ),
        (
            {"workers": (WorkerSeen("old", "a", versions={"rlvf": version("rlvf")}),)},
            "versions: rlvf source [0-9a-f]{12} here, unknown there .old.; install the same commit",
        ),
        ({"clock": 60.0}, "clock: 60 s behind the scheduler's; set it"),
        (
            {"services": Addresses(storage="/no/such/folder")},
            "storage: /no/such/folder is a folder that is not here; mount",
        ),
        ({"services": Addresses(storage="nosuch://x")}, "storage: nosuch://x"),
    ],
)
def test_a_machine_that_does_not_fit_is_refused(
    answers: dict[str, Any], line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Stub(monkeypatch, **answers)
    assert re.search(f"this machine cannot join: {line}", refused(["worker", "tcp://h"], capsys))


def test_the_storage_of_the_cluster_counts_and_not_that_of_an_old_bundle(
    home_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own_certificates(home_folder)
    (home_folder / "certs" / "settings.json").write_text(
        json.dumps({"machine": "box", "environment": {"RLVF_STORAGE": "/no/such/before"}})
    )
    Stub(monkeypatch, services=Addresses(storage="/no/such/now"))
    monkeypatch.setenv("RLVF_STORAGE", "")
    monkeypatch.delenv("RLVF_STORAGE")  # with the line before it: what a command sets is undone
    assert "storage: /no/such/now is a folder that is not here" in refused(["worker", "tcp://h"], capsys)
    monkeypatch.setenv("RLVF_STORAGE", "/no/such/chosen")
    line = refused(["worker", "tcp://h"], capsys)
    assert "storage: /no/such/chosen is a folder that is not here" in line
    Stub(monkeypatch)
    monkeypatch.delenv("RLVF_STORAGE")
    assert "storage: /no/such/before is a folder that is not here" in refused(["worker", "tcp://h"], capsys)


def test_a_firewall_is_noticed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Stub(monkeypatch)
    monkeypatch.setattr("infra.checks.cluster.answers_back", lambda *_: "no connection within 10 s")
    assert "way back: the scheduler cannot connect to 127.0.0.1" in refused(["worker", "tcp://h"], capsys)


def test_roles_are_processes_that_divide_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "cores", lambda: 8)
    made = {role.name: (role.tags, role.threads) for role in roles("box", "CUDA", ("VERIFIER", "GENERATOR"), None)}
    assert made == {"box-generator": (("CUDA", "GENERATOR"), 8), "box-verifier": (("CPU", "VERIFIER"), 1)}
    assert [role.threads for role in roles("box", "CPU", ("GENERATOR", "TRAINER", "VERIFIER"), None)] == [4, 4, 1]
    assert [role.threads for role in roles("box", "CPU", ("GENERATOR", "TRAINER"), 3)] == [3, 3]
    assert [role.sharing for role in roles("box", "CUDA", ("GENERATOR", "TRAINER", "VERIFIER"), None)] == [2, 2, 1]
    three = roles("box", "CUDA", ("GENERATOR", "TRAINER", "VERIFIER"), None, 20)
    assert [role.memory for role in three] == [20, 20, None]


def test_the_first_machine_also_trains() -> None:
    assert default_roles(Seen()) == ("GENERATOR", "VERIFIER", "TRAINER")
    trained = Seen((WorkerSeen("b", "a", resources={"TRAINER": 1.0}),))
    assert default_roles(trained) == ("GENERATOR", "VERIFIER")


def test_a_worker_finds_the_scheduler_of_its_own_machine(home_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        home_folder.mkdir()
        address = f"tcp://127.0.0.1:{closed.getsockname()[1]}"
        (home_folder / "up.json").write_text(json.dumps({"scheduler": address, "pid": 1}))
        assert f"{address}: nothing listens there" in refused(["worker"], capsys)
    (home_folder / "up.json").write_text("broken")
    assert "no scheduler to join" in refused(["worker"], capsys)
