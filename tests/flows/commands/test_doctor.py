"""`rlvf doctor`: one line per check, and an exit code."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from flows.cli import main
from infra.cluster.reach import parse_address
from infra.security.identity import issue, own_certificates
from infra.security.tls import dask_security
from infra.services.addresses import Addresses
from infra.services.scheduler import announce
from infra.storage.mark import leave_mark

pytestmark = pytest.mark.usefixtures("own_signals_and_environment")


def doctor(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, list[dict[str, str]]], str]:
    """Exit code, the checks by name, and stderr."""
    code = 0
    try:
        main(["doctor", "--json", *words])
    except SystemExit as end:
        code = int(end.code or 0)
    out, err = capsys.readouterr()
    found: dict[str, list[dict[str, str]]] = {}
    if code < 2:
        said = json.loads(out)
        assert said["ok"] == (code == 0)
        for check in said["checks"]:
            found.setdefault(check["name"], []).append(check)
            assert check["state"] in ("ok", "warn", "fail")
    assert "Traceback" not in err
    return code, found, err


@pytest.fixture(scope="module")
def scheduler(start_scheduler: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Path]]:
    """One over TLS, that knows its services as `rlvf up` tells them, and the home of its machine."""
    home = tmp_path_factory.mktemp("first")
    own_certificates(home)
    running = start_scheduler(home)
    with Client(running.address, security=dask_security(home), set_as_default=False) as client:
        client.set_metadata(["rlvf", "services"], {"storage": str(home), "mlflow": "http://127.0.0.1:9"})
    return running, home


def test_one_machine_alone_is_well(capsys: pytest.CaptureFixture[str], home_folder: Path) -> None:
    code, found, _ = doctor(capsys)
    assert code == 0, found
    assert set(found) == {"installed", "tested", "machine", "compiler", "scheduler", "storage", "interface"}
    assert "`rlvf train` starts what it needs" in found["scheduler"][0]["found"]
    assert "MB/s" in found["storage"][0]["found"]
    assert not home_folder.exists()


def test_a_machine_without_a_compiler_is_slower_and_well(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    code, found, _ = doctor(capsys)
    assert code == 0
    (check,) = found["compiler"]
    assert check["state"] == "warn"
    assert "generation takes longer" in check["found"]
    assert "gcc" in check["remedy"]


def test_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor"])
    out, _ = capsys.readouterr()
    assert all(line.startswith(("ok    ", "warn  ")) for line in out.splitlines())


@pytest.mark.slow
def test_a_cluster_is_looked_at_from_here(
    scheduler: tuple[Any, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    running, home = scheduler
    monkeypatch.setenv("RLVF_HOME", str(home))
    code, found, _ = doctor(capsys, "--scheduler", running.address)
    assert code == 1
    assert found["certs"][0]["state"] == "ok"
    assert "no workers yet" in found["scheduler"][0]["found"]
    for name in ("interface", "way back", "versions", "clock", "storage"):
        assert found[name][0]["state"] == "ok", found[name]
    assert {check["state"] for check in found["placement"]} == {"fail"}
    assert found["placement"][0]["remedy"] == "rlvf worker --roles generator"
    assert "no answer at http://127.0.0.1:9" in found["mlflow"][0]["found"]


@pytest.mark.slow
def test_a_folder_at_the_same_path_that_is_not_shared_is_found(
    scheduler: tuple[Any, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    running, home = scheduler
    monkeypatch.setenv("RLVF_HOME", str(home))
    data = tmp_path / "data"
    known = Addresses(storage=str(data), storage_mark=leave_mark(str(data), "laptop"))
    announce(parse_address(running.address, home), home, known)
    _, found, _ = doctor(capsys, "--scheduler", running.address)
    assert [found[name][0]["state"] for name in ("storage", "shared")] == ["ok", "ok"]
    data.rename(tmp_path / "on the other machine")
    data.mkdir()
    code, found, _ = doctor(capsys, "--scheduler", running.address)
    assert (code, found["storage"][0]["state"], found["shared"][0]["state"]) == (1, "ok", "fail")
    assert f"{data} here is not the {data} of 127.0.0.1" in found["shared"][0]["found"]
    with pytest.raises(SystemExit) as end:
        main(["worker", running.address, "--roles", "verifier"])
    assert end.value.code == 2
    assert f"this machine cannot join: shared: {data} here is not the" in capsys.readouterr().err
    assert list(data.iterdir()) == []


@pytest.mark.slow
def test_a_placement_of_a_file_is_looked_at(
    scheduler: tuple[Any, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    running, home = scheduler
    monkeypatch.setenv("RLVF_HOME", str(home))
    config = tmp_path / "my.yaml"
    config.write_text(f"placement: {{train: [CUDA, TRAINER]}}\ncluster: {{scheduler: '{running.address}'}}\n")
    _, found, _ = doctor(capsys, "--config", str(config))
    assert "train needs CUDA TRAINER: no worker" in [check["found"] for check in found["placement"]]
    config.write_text("placement: {train: [TPU]}\n")
    code, _, err = doctor(capsys, "--config", str(config))
    assert code == 2
    assert "unknown tag 'TPU'" in err


@pytest.mark.slow
def test_a_guest_without_certificates_learns_how_to_get_them(
    scheduler: tuple[Any, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    code, found, _ = doctor(capsys, "--scheduler", scheduler[0].address)
    assert code == 1
    assert "`rlvf certs NAME`" in found["scheduler"][0]["found"]
    code, _, err = doctor(capsys, "--scheduler", "http://nonsense:x")
    assert (code, "no address of a scheduler" in err) == (2, True)


@pytest.mark.slow
def test_a_certificate_that_is_about_to_end_is_a_warning(home_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_certificates(home_folder)
    for days, state in ((10, "warn"), (-1, "fail")):
        soon = issue(home_folder, "here", days=days)
        (home_folder / "certs" / "machine.pem").write_text(soon.certificate)
        (home_folder / "certs" / "machine.key").write_text(soon.key)
        code, found, _ = doctor(capsys)
        assert (found["certs"][0]["state"], code) == (state, int(state == "fail"))


@pytest.mark.slow
def test_services_are_asked(home_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(401)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        home_folder.mkdir()
        url = f"http://me:planted-secret@127.0.0.1:{server.server_port}"
        (home_folder / "up.json").write_text(
            json.dumps({"prefect": f"{url}/api", "mlflow": url, "storage": "/no/such", "pid": 1})
        )
        code, found, err = doctor(capsys)
        server.shutdown()
    assert code == 1
    assert found["mlflow"][0]["state"] == "ok"
    assert "planted-secret" not in json.dumps(found) + err
    assert "/no/such is a folder that is not here" in found["storage"][0]["found"]
