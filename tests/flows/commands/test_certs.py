"""`rlvf certs`: what a bundle carries."""

import json
import stat
from pathlib import Path

import pytest

from flows.cli import main
from infra.security.bundles import read_bundle
from tests.flows.commands.refusals import refused

pytestmark = pytest.mark.usefixtures("own_signals_and_environment")


def test_a_bundle_carries_credentials_only_when_asked(
    home_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "RLVF_STORAGE": "s3://runs/x",
        "AWS_ENDPOINT_URL_S3": "http://nas:9000",
        "AWS_ACCESS_KEY_ID": "me",
        "AWS_SECRET_ACCESS_KEY": "planted-secret",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    home_folder.mkdir()
    (home_folder / "up.json").write_text(json.dumps({"scheduler": "tls://10.0.0.1:8786", "pid": 1}))
    main(["certs", "jetson"])
    plain = read_bundle(tmp_path / "jetson.bundle")
    assert plain.environment == {"RLVF_STORAGE": "s3://runs/x", "AWS_ENDPOINT_URL_S3": "http://nas:9000"}
    assert plain.scheduler == "tls://10.0.0.1:8786"
    out, err = capsys.readouterr()
    assert out == "then, on jetson: rlvf worker --bundle jetson.bundle\n"
    assert "rlvf up" not in err
    main(["certs", "rented", "--with-storage", "--days", "7", "--out", "r", "--address", "10.0.0.7", "--json"])
    full = read_bundle(tmp_path / "r")
    assert full.environment["AWS_SECRET_ACCESS_KEY"] == "planted-secret"
    assert stat.S_IMODE((tmp_path / "r").stat().st_mode) == 0o600
    out, err = capsys.readouterr()
    assert json.loads(out)["next"] == "rlvf worker --bundle r"
    assert "planted-secret" not in out + err
    assert "planted-secret" not in repr(full)


def test_a_bundle_that_is_of_no_use_elsewhere_says_what_helps(
    home_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home_folder.mkdir()
    (home_folder / "up.json").write_text(json.dumps({"scheduler": "tls://127.0.0.1:8786", "pid": 1}))
    words = ["certs", "jetson", "--out", str(tmp_path / "bundle")]
    main(words)
    out, err = capsys.readouterr()
    assert out == ""
    assert "jetson cannot join tls://127.0.0.1:8786, an address of the scheduler's own machine alone" in err
    assert "`rlvf down`, then `rlvf up --host ADDRESS` there, with a --storage that all machines see" in err
    main([*words, "--scheduler", "tls://127.0.0.1:9000"])  # the end of a tunnel, say
    assert "rlvf up" not in capsys.readouterr().err


def test_the_environment_of_dask_commands_is_printed(
    first: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no certificates in" in refused(["certs", "--environment"], capsys)
    monkeypatch.setenv("RLVF_HOME", str(first))
    main(["certs", "--environment"])
    lines = capsys.readouterr().out.splitlines()
    assert f"export DASK_DISTRIBUTED__COMM__TLS__CA_FILE={first}/certs/authority.pem" in lines
    assert "export DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES=0" in lines
