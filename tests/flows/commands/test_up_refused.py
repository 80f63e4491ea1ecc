"""What `rlvf up` refuses in one line before anything is started."""

import sys
from pathlib import Path

import pytest

from flows.cli import main
from infra.security.identity import certs_folder, issue, make_authority, own_certificates


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--storage", "/dev/null/runs"), r"storage /dev/null/runs: cannot be used"),
        (("--storage", "gopher://here/runs"), r"storage gopher://here/runs: cannot be used: Protocol not known"),
        (("--storage", "sftp://me:planted@host/runs"), r"storage: holds a password"),
        (("--host", "0.0.0.0"), r"--host '0.0.0.0' names no address"),
        (("--host", "203.0.113.7"), r"--host 203.0.113.7: is no address of this machine; it has 127.0.0.1"),
        (("--port-mlflow", "70000"), r"--port-mlflow: 70000 is no port: give 0 to 65535; 0 takes a free one"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str], home_folder: Path
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["up", *words])
    assert refused.value.code == 2
    err = capsys.readouterr().err
    assert said in err
    assert "planted" not in err
    assert err.strip().count("\n") == 0
    assert not (home_folder / "services").exists()


def test_a_home_whose_certificate_is_over_is_not_opened_to_others(
    tmp_path: Path, home_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from infra.hosts import own_addresses

    if not own_addresses():
        pytest.skip("this machine has no address but loopback")
    make_authority(tmp_path / "other")
    own_certificates(home_folder)
    (certs_folder(home_folder) / "authority.key").unlink()  # a guest cannot make itself a new one
    (certs_folder(home_folder) / "machine.pem").write_text(issue(tmp_path / "other", "guest", days=-1).certificate)
    with pytest.raises(SystemExit) as refused:
        main(["up", "--host", own_addresses()[0]])
    assert refused.value.code == 2
    assert "certificate expired" in capsys.readouterr().err


@pytest.mark.parametrize("variable", ["PREFECT_API_URL", "MLFLOW_TRACKING_URI", "RLVF_SCHEDULER"])
def test_a_service_that_is_named_and_not_there_is_an_error(
    variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home_folder: Path
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")  # nothing is to be started on the way
    monkeypatch.setenv(
        variable, {"RLVF_SCHEDULER": "tcp://127.0.0.1:1"}.get(variable, "http://user:planted@127.0.0.1:1")
    )
    if variable != "PREFECT_API_URL":
        monkeypatch.setattr("infra.services.prefect_server.answers", lambda *_, **__: True)
    with pytest.raises(SystemExit) as refused:
        main(["up"])
    assert refused.value.code == 2
    err = capsys.readouterr().err
    assert variable in err
    assert "planted" not in err
    assert not (home_folder / "up.json").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc takes no folder, whoever makes one, on Linux alone")
@pytest.mark.parametrize("words", [("up",), ("sft",), ("verifier", "serve", "--port", "0"), ("certs", "other")])
def test_a_directory_that_takes_no_home_is_refused_by_the_name_of_the_variable(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RLVF_HOME")
    monkeypatch.chdir("/proc")
    with pytest.raises(SystemExit):
        main(words)
    err = capsys.readouterr().err
    assert "cannot be written (" in err
    assert "set RLVF_HOME to a folder that can, now /proc/.rlvf" in err
    assert err.strip().count("\n") == 0
